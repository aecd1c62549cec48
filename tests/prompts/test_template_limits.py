"""Templates that try to reach Python, to change their data or to write without end: each is an error row."""

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assayline.errors import AssaylineError
from assayline.prompts import RowError
from assayline.prompts.template import LONGEST_CHARS, PromptTemplate
from assayline.requests import chat
from assayline.requests.chat import ChatRenderer
from assayline.spec.prompts import ChatSpec

USER = [{"role": "user", "content": "q"}]
ROW = {"question": "q", "items": [1], "record": {"a": 1}}
ESCAPES = [
    "{{ ''.__class__.__mro__ }}", "{{ ''['__class__'].__mro__ }}", "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}", "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ self.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}{{ os.environ }}",
    "{% for i in range(10 ** 9) %}x{% endfor %}",
]  # fmt: skip
CHANGES = ["{{ items.append(2) }}", "{{ record.update({'a': 2}) }}", "{% set x = [] %}{{ x.append(1) }}"]


@pytest.fixture(params=["prompts.template", "chat.template"])
def render(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """Renders a template in either of the two places that have one."""

    def render_row(template: str) -> str:
        return str(PromptTemplate(template).render(ROW)[0]["content"])

    def render_chat(template: str) -> str:
        return ChatRenderer(ChatSpec(template=template, kwargs=ROW), tokenizer).render(USER).text

    return render_row if request.param == "prompts.template" else render_chat


@pytest.mark.parametrize("template", ESCAPES + CHANGES)
def test_a_template_does_not_reach_python(render, template):
    try:
        text = render(template)
    except RowError as error:
        assert error.kind == "template_error"
    else:
        assert template not in CHANGES
        assert text == "", "a chat template is not strict: what it may not read is undefined"
    assert ROW == {"question": "q", "items": [1], "record": {"a": 1}}


def test_a_template_that_writes_too_much_is_one_bad_row(render):
    with pytest.raises(RowError, match=rf"{LONGEST_CHARS + 1} characters, expected at most {LONGEST_CHARS}") as raised:
        render(f"{{{{ 'a' * {LONGEST_CHARS + 1} }}}}")
    assert raised.value.kind == "prompt_too_long"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'ab' * 3 }} {{ 2 ** 10 }} {{ '%5d|%-3s|%.2f %%' % (3, 'x', 1) }} {{ 'aXa'.replace('X', 'b') }}",
        "{{ ['a', 1]|join(',') }} {{ [{'k': 1}]|join(attribute='k') }} {{ 'a\nb'|indent(2) }} {{ 1.25|round(1) }}",
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m('b')|upper }} {{ 'a' ~ 1 ~ [2] }}",
    ],
)
def test_ordinary_templates_have_the_text_of_jinja(render, template):
    assert render(template) == ImmutableSandboxedEnvironment().from_string(template).render()


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
