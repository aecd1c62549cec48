-- Grain: one row: a completed run of generated answers, none of which waits for another, whose engines say how many
-- sequences a step holds.
--
-- What other ways of batching would have cost, counted in engine steps from the lengths that were found. A request
-- takes one seat for as many steps as it has output tokens; reading prompts, preemptions and speculation are left out.
-- An order is played through seat by seat: each request takes the seat that is free first. Beyond 20,000 requests no
-- order is played through, as that takes 50 µs a request, and its steps are NULL.
--
-- run_id: the run.
-- requests: ok requests with output.
-- output_tokens: their output tokens.
-- seats: sequences that a step of all its engines together may hold: the smaller of max_num_seqs and the window, summed
--     over the last engine of each worker.
-- engine_steps: steps that its engines made, the mean over workers; NULL where they do not say.
-- bound_steps: what no order can go below: the longest answer, or all tokens over all seats.
-- longest_first_steps: steps with the longest answers first, were their lengths known.
-- given_steps: steps in the order of the prompts, as of one call with all of them.
-- barrier_32_steps: steps in batches of 32 in the order of the prompts, each waiting for its longest answer, whatever
--     the seats.
-- barrier_64_steps: the same in batches of 64.
-- barrier_256_steps: the same in batches of 256.
-- empty_seat_steps: seats that were empty, summed over the steps of each worker; NULL without engine_steps.
create or replace macro batching_steps(run) as table
with

count_seats as (
    select
        run_id,
        cast(sum(seats) as bigint) as seats,
        avg(worker_steps) as engine_steps,
        cast(sum(worker_steps * seats) as bigint) as seat_steps
    from (
        select
            run_id,
            worker,
            arg_max(
                case when max_num_seqs is not null then least(max_num_seqs, window_requests) end,
                engine_generation
            ) as seats,
            case when count(*) = count(engine_steps) then sum(engine_steps) end as worker_steps
        from engine_history
        where run_id = run
        group by run_id, worker
    )
    group by run_id
    having count(*) = count(seats) and count(worker_steps) in (0, count(*))
),

place_requests as (
    select
        stg_requests.run_id,
        stg_requests.output_tokens,
        row_number() over given as place
    from stg_requests
    join runs using (run_id)
    where stg_requests.run_id = run
        and runs.state = 'completed'
        and status = 'ok'
        and option_index is null
        and turn_index is null  -- a turn cannot be in a batch with the one before it
        and output_tokens > 0
    window given as (order by source_row, occurrence, repeat_index, request_id)
),

count_lengths as (
    select
        run_id,
        count(*) as requests,
        cast(sum(output_tokens) as bigint) as output_tokens,
        max(output_tokens) as longest_tokens
    from place_requests
    group by run_id
),

-- The rows are left out before they are gathered: a list is one piece of memory, however long.
gather_lengths as (
    select
        run_id,
        list([cast(place_requests.output_tokens as bigint)] order by place) as in_order_given,
        list([cast(place_requests.output_tokens as bigint)] order by place_requests.output_tokens desc)
            as in_order_longest_first
    from place_requests
    join count_lengths using (run_id)
    where count_lengths.requests <= 20000
    group by run_id
),

stop_at_barriers as (
    select
        run_id,
        cast(sum(longest) filter (size = 32) as bigint) as barrier_32_steps,
        cast(sum(longest) filter (size = 64) as bigint) as barrier_64_steps,
        cast(sum(longest) filter (size = 256) as bigint) as barrier_256_steps
    from (
        select run_id, size, max(output_tokens) as longest
        from place_requests
        cross join (values (32), (64), (256)) as sizes (size)
        group by run_id, size, (place - 1) // size
    )
    group by run_id
),

play_orders as (
    select
        run_id,
        requests,
        output_tokens,
        seats,
        engine_steps,
        greatest(longest_tokens, cast(ceil(output_tokens / seats) as bigint)) as bound_steps,
        list_max(list_reduce(
            in_order_longest_first,
            lambda free_at, request: list_sort(list_append(free_at[2:], free_at[1] + request[1])),
            list_resize([]::bigint[], seats, 0)
        )) as longest_first_steps,
        list_max(list_reduce(
            in_order_given,
            lambda free_at, request: list_sort(list_append(free_at[2:], free_at[1] + request[1])),
            list_resize([]::bigint[], seats, 0)
        )) as given_steps,
        barrier_32_steps,
        barrier_64_steps,
        barrier_256_steps,
        seat_steps - output_tokens as empty_seat_steps
    from count_lengths
    join count_seats using (run_id)
    join stop_at_barriers using (run_id)
    left join gather_lengths using (run_id)
)

select * from play_orders;

comment on macro table batching_steps is 'batching_steps(run), a run id: one row, or none where its engines do not say how many sequences a step holds: the run''s engine steps, and what other ways of batching would have taken for answers of the same lengths.';
