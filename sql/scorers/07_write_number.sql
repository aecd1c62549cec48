-- 42, 42.0, $42 and 4.2e1 are one answer, and one vote.
create or replace macro internal.write_number(number, is_percent) as
case
    when abs(number) < 1e15 and number = trunc(number) then cast(cast(number as bigint) as varchar)
    else cast(number as varchar)
end || case when is_percent then '%' else '' end;

comment on macro internal.write_number is 'A number in one spelling: whole ones below 10^15 without a point, others as DuckDB prints a double, and % behind a percentage.';
