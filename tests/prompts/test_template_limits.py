"""Templates that try to reach Python, to run forever or to eat the machine: each ends soon, with an error."""

import datetime
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psutil
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assayline.errors import AssaylineError, PromptError
from assayline.prompts import RowError, sandbox
from assayline.prompts.sandbox import LONGEST_CHARS
from assayline.prompts.template import PromptTemplate
from assayline.requests import chat
from assayline.requests.chat import ChatRenderer
from assayline.spec.prompts import ChatSpec

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": "q"}]
ROW = {
    "question": "q",
    "big": 10**10,
    "long": "a" * 10**6,
    "decimal": Decimal(10),
    "date": datetime.datetime(2024, 1, 1),
}

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'].__mro__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.environ }}",
    "{% set x = [] %}{{ x.append(1) }}",
]
DOUBLED = "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = ... %}{% endfor %}{{ n.a }}"
TOO_LARGE = [
    "{{ ('{0:99999}' * 2000).format(1) }}",
    "{{ ('{0}' * 100000).format('a' * 1000000) }}",
    "{{ (('{0}'|e) * 100000).format('<' * 1000000) }}",
    "{{ ('%(a)99999s' * 2000) % {'a': 1} }}",
    "{{ ('%((a))9999999s' * 10) % {'(a)': 1} }}",
    "{{ ('%s' * 3000) % ((long,) * 3000) }}",
    "{{ '%10000000000d'.encode() % 1 }}",
    "{{ ('a' * 20000).translate({97: 'b' * 10000}) }}",
    "{{ 'a'.encode().center(10 ** 10) }}",
    "{{ long.encode().join(['a'.encode()] * 10 ** 6) }}",
    "{{ long.encode().replace('a'.encode(), long.encode()) }}",
    "{{ ('\t' * 1000).expandtabs(tabsize=10 ** 9) }}",
    "{{ long.join(long) }}",
    "{{ dict.fromkeys(range(100000), long) }}",
    "{{ (1).to_bytes(length=10 ** 10, byteorder='big') }}",
    "{{ (0).from_bytes((long * 8).encode(), 'big') // 7 }}",
    "{{ (('f' * 8000000)|int(base=16)) // 3 }}",
    "{{ (long * 8).rfind('b' + long * 4) }}",
    "{{ (long * 8).rsplit(sep='b' + long * 4) }}",
    "{{ (long * 8).strip('b' * 8000000 + 'a') }}",
    "{{ (long * 8)|trim('b' * 8000000 + 'a') }}",
    "{{ 1|round(10 ** 9, 'ceil') }}",
    "{{ 1|round(-(10 ** 9)) }}",
    "{{ (decimal ** 900000)|int }}",
    "{{ date.strftime('%Y' * 4000000) }}",
    "{{ ('{:' ~ '%Y' * 3000000 ~ '}').format(date) }}",
    "{{ ['x']|batch(10 ** 10, 'y')|list|length }}",
    "{{ ['x']|slice(10 ** 10, 'y')|list|length }}",
    "{{ ('a ' * 1000000)|wordwrap(1, wrapstring=long) }}",
    "{{ ('\r' * 1000000)|indent(long) }}",
    "{{ [1]|tojson(indent=10 ** 10) }}",
    "{{ ([1] * 1000000)|tojson(indent=1000000) }}",
    DOUBLED.replace("...", "[n.a, n.a]"),
    DOUBLED.replace("...", "(n.a, n.a)"),
    DOUBLED.replace("...", "[n.a] * 2"),
    DOUBLED.replace("...", "{'a': n.a, 'b': n.a}"),
    DOUBLED.replace("...", "dict(a=n.a, b=n.a).items()"),
    "{% macro m() %}{% set n.a = varargs %}{% endmacro %}"
    + DOUBLED.replace("{% set n.a = ... %}", "{{ m(n.a, n.a) }}"),
    "{% set n = namespace(s=long.encode()) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=long) %}{% for i in range(60) %}"
    "{% set n.s = n.s.encode('utf-32').decode('latin-1') %}{% endfor %}",
    "{% set n = namespace(a=3 ** 30000) %}{% for i in range(60) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "{{ " + " ~ ".join(["long"] * 2000) + " }}",
    "{% set n = namespace(a=1) %}{% for i in range(40) %}{% set n.a = namespace(a=n.a, b=n.a) %}{% endfor %}{{ n.a }}",
    "{{ lipsum(n=100000) }}",
    "{{ 'a'|center(8000000) }}" * 20,
    "{% set n = namespace(s='a' * 1000) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% for i in range(10 ** 9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}x"
    "{% for k in 'a' * 10000 %}yyyyyyyyyyyyyyyyyyyy{% endfor %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ ['a' * 10 ** 6] * 10 ** 5 }}",
    "{{ 3 ** (10 ** 9) }}",
    "{{ ((3 ** 30000) ** 30000) ** 30000 }}",
    "{{ 'a'.center(10 ** 10) }}",
    "{{ 'a'.ljust(width=10 ** 10) if false else 'a'.rjust(10 ** 10) }}",
    "{{ '7'.zfill(10 ** 10) }}",
    "{{ 'a'|center(10000000000) }}",
    "{{ 'a\na'|indent(10000000000) }}",
    "{{ 'a'|indent(width='a' * 10 ** 7, first=true) * 10 }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%(a)*d' % {'a': 1} }}",
    "{{ '%.*f' % (10000000000, 1.0) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10 ** 10) }}",
    "{{ '{a:>{b}}'.format_map({'a': 1, 'b': 10 ** 10}) }}",
    "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6)|replace('a', 'b' * 10 ** 6) }}",
    "{{ (['a' * 1000] * 10 ** 4 * 10)|join }}",
    "{{ range(100000)|map('upper')|join('a' * 1000) }}",
    "{% set n = namespace(s='a' * 8000000) %}{{ ([n] * 1000)|join(attribute='s') }}",
    "{{ ('a' * 1000)|replace(new='b' * 1000000, old='a') }}",
    "{{ ('a' * 10 ** 6).join(range(100000)|map('string')|list) }}",
    "{% macro m() %}{{ 'a' * 10 ** 7 }}{% endmacro %}{{ m() }}{{ m() }}",
    "{% set n = namespace(s='a' * 1000) %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
]
ENDLESS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) if n else '' }}{{ f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}",
    "{{ range(100000)|map('string')|map('center', 1000000)|list|length }}",
    "{% for m in range(30000) %}{% for n in range(30000) %}{% if n == 40000 %}x{% endif %}{% endfor %}{% endfor %}",
    "{{ ([['a']] * 1000000)|sum(start=[])|length }}",
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_SECONDS", 0.5)
    monkeypatch.setattr(sandbox, "MOST_BYTES", 2**27)
    monkeypatch.setattr(sandbox, "LOOK_INTERVAL_S", 0.05)


@pytest.fixture(params=["prompts.template", "chat.template"])
def render(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """Renders a template in either of the two places that have one."""

    def render_row(template: str) -> str:
        return str(PromptTemplate(template).render(ROW)[0]["content"])

    def render_chat(template: str) -> str:
        return ChatRenderer(ChatSpec(template=template, kwargs=ROW), tokenizer).render(USER).text

    return render_row if request.param == "prompts.template" else render_chat


@pytest.fixture
def flat() -> Iterator[None]:
    """Assert that the block needs little time, and the process little more memory."""
    process, started_s = psutil.Process(), time.monotonic()
    most_bytes = process.memory_info().rss
    is_over = threading.Event()

    def look() -> None:
        nonlocal most_bytes
        while not is_over.wait(0.02):
            most_bytes = max(most_bytes, process.memory_info().rss)

    before_bytes = most_bytes
    watcher = threading.Thread(target=look)
    watcher.start()
    yield
    is_over.set()
    watcher.join()
    assert most_bytes - before_bytes < 2 * 2**30, "the limit, and what is made until the next look"
    assert time.monotonic() - started_s < 60


@pytest.mark.parametrize("template", ESCAPES)
def test_a_template_does_not_reach_python(render, template):
    try:
        text = render(template)
    except RowError as error:
        assert error.kind == "template_error"
    else:
        assert text == ""  # a chat template is not strict: what it may not read is undefined


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("template", TOO_LARGE)
def test_template_rejects_oversized_values_before_building_them(render, template):
    started_s = time.process_time()
    with pytest.raises(RowError, match=r"at most|Range too big|whose width|\d+ bits") as raised:
        render(template)
    assert raised.value.kind == "template_error"
    assert time.process_time() - started_s < 20, "most take a hundredth of a second"


@pytest.mark.usefixtures("impatient", "flat")
@pytest.mark.parametrize("template", ENDLESS)
def test_template_that_does_not_end_is_stopped(render, template):
    with pytest.raises((PromptError, RowError), match=r"took more than 0.5 s or 128 MiB and was stopped"):
        render(template)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'ab' * 3 }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ [0] * 2 }} {{ 2 ** -1 }}", "ababab 1024 3 [0, 0] 0.5"),
        ("{{ '%5d|%-3s|%.2f %%' % (3, 'x', 1) }} {{ '%s'|format('y') }}", "    3|x  |1.00 % y"),
        ("{{ '{:>5}'.format(2) }} {{ '{a}'.format(a=1) }} {{ '{}'.format_map({}) if false else '' }}", "    2 1 "),
        ("{{ ['a', 1]|join(',') }} {{ ', '.join(['a', 'b']) }} {{ [{'k': 1}]|join(attribute='k') }}", "a,1 a, b 1"),
        ("{{ 'a\nb'|indent(2) }} {{ 'a'|center(3) }} {{ 'aXa'|replace('X', 'b') }}", "a\n  b  a  aba"),
        ("{{ ['a', 'b']|batch(3, '-')|list }} {{ [[1], [2]]|sum(start=[]) }} {{ 1.25|round(1) }}", None),
        ("{{ '%(a)5s|%(b)s|%%' % {'a': 1, 'b': 2} }} {{ 'ab'.translate({97: 'xy'}) }}", "    1|2|% xyb"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }} {{ 'a,b'.rsplit(',') }} {{ ' a '|trim }} {{ (7).to_bytes(2, 'big')|list }}", None),
        ("{{ 'a'.center(3) }}{{ '7'.zfill(2) }}{{ 'aa'.replace('a', 'b', 1) }}", " a 07ba"),
        (
            "{% for x in ['aXa'] %}{% set y = x * 3 %}{{ x.replace('X', 'b') }}{{ x.strip('a') }}{{ '-'.join([x, y]) }}"
            "{{ '{}'.format(x.center(5)) }}{% endfor %}",
            "abaXaXa-aXaaXaaXa aXa ",
        ),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m('b')|upper }}", "<1><B>"),
    ],
)
def test_ordinary_templates_are_as_they_were(render, template, text):
    text = ImmutableSandboxedEnvironment().from_string(template).render() if text is None else text
    assert render(template).replace('"', "'") == text


@pytest.mark.usefixtures("impatient")
def test_a_template_that_is_stopped_again_and_again_stops_the_run():
    template = PromptTemplate(ENDLESS[0])
    for _ in range(sandbox.MOST_STOPPED - 1):
        with pytest.raises(RowError):
            template.render(ROW)
    with pytest.raises(PromptError, match=r"was stopped, 3 times by now") as raised:
        template.render(ROW)
    assert not isinstance(raised.value, RowError)


def test_template_nested_too_deeply_is_rejected(tokenizer):
    for template in ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for a in [1] %}" * 30 + "{% endfor %}" * 30]:
        with pytest.raises(AssaylineError, match=r"cannot be compiled"):
            PromptTemplate(template)
        with pytest.raises(RowError, match=r"failed on this conversation"):
            ChatRenderer(ChatSpec(template=template), tokenizer).render(USER)


@pytest.mark.parametrize("template", ["plain", "default"])
def test_a_prompt_of_many_megabytes_is_one_bad_row(tokenizer, template):
    renderer = ChatRenderer(ChatSpec(template=template), tokenizer)
    with pytest.raises(RowError, match=rf"at most {LONGEST_CHARS}") as raised:
        renderer.render([{"role": "user", "content": "a" * (LONGEST_CHARS + 1)}])
    assert raised.value.kind == "prompt_too_long"


def test_a_prompt_that_cannot_fit_the_context_is_not_tokenised(tokenizer, monkeypatch):
    monkeypatch.setattr(chat, "ALWAYS_TOKENISED_CHARS", 100)
    longest = max(tokenizer.get_vocab(), key=len)
    renderer = ChatRenderer(ChatSpec(template="plain"), tokenizer, max_model_len=50)
    fits = longest * 50
    assert len(renderer.render([{"role": "user", "content": fits}]).token_ids) >= 50
    with pytest.raises(RowError, match=f"has {len(fits) + 1} characters, expected at most {len(fits)}") as raised:
        renderer.render([{"role": "user", "content": fits + "a"}])
    assert raised.value.kind == "prompt_too_long"


@pytest.mark.usefixtures("impatient")
def test_a_slow_row_does_not_stop_the_template_of_another_thread():
    stopped: list[str] = []

    def endless() -> None:
        try:
            PromptTemplate(ENDLESS[0]).render(ROW)
        except RowError as error:
            stopped.append(str(error))

    thread = threading.Thread(target=endless)
    thread.start()
    quick = PromptTemplate("{{ question }}")
    while thread.is_alive():
        assert quick.render(ROW) == [{"role": "user", "content": "q"}]
    assert len(stopped) == 1
