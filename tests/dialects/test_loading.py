"""Loading a dialect: what is found, and what is refused with its reason."""

from __future__ import annotations

import json

import pytest

from dialects.small_tokenizer import CHATML, CHATML_MARKERS, small_dialect, write_tokenizer
from environments.dialects import load_dialect
from environments.errors import BadRequest, ConfigError, UnknownName

USER = {"role": "user", "content": "Hi."}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def test_a_folder_and_its_file_give_the_same_dialect(tmp_path):
    folder = write_tokenizer(tmp_path, CHATML)
    ids = [
        load_dialect(where, tool_parser="hermes").render([USER], None).ids
        for where in (folder, folder / "tokenizer.json")
    ]
    assert ids[0] == ids[1]


def test_stop_tokens_come_from_configuration_and_template(tmp_path):
    folder = write_tokenizer(tmp_path, CHATML)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    dialect = load_dialect(folder, tool_parser="hermes")
    names = {dialect.tokenizer.token_to_id(marker) for marker in ("<|endoftext|>", "<|im_end|>")}
    assert set(dialect.stop_token_ids) == {7, 8} | names


def test_the_template_may_stand_in_the_configuration_by_name_or_be_given(tmp_path):
    folder = write_tokenizer(tmp_path, None)
    with pytest.raises(ConfigError, match="no chat template"):
        load_dialect(folder)
    named = [{"name": "default", "template": "{{ 1 / 0 }}"}, {"name": "tool_use", "template": CHATML}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    expected = load_dialect(folder, tool_parser="hermes").render([USER], None).ids
    file = tmp_path / "other.jinja"
    file.write_text(CHATML)
    assert with_template(folder, CHATML).render([USER], None).ids == expected
    assert with_template(folder, str(file)).render([USER], None).ids == expected
    with pytest.raises(ConfigError, match="neither a template nor a file"):
        load_dialect(folder, chat_template="nothing.jinja")


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "a/b/c"])
def test_a_folder_that_is_not_there_is_said(name):
    with pytest.raises(ConfigError, match="no such folder"):
        load_dialect(name)


def test_a_broken_tokenizer_is_said(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load_dialect(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dialect(tmp_path)


def test_a_token_that_the_library_would_give_another_id_is_found(tmp_path):
    file = write_tokenizer(tmp_path, CHATML) / "tokenizer.json"
    state = json.loads(file.read_text())
    for token in state["added_tokens"]:
        token["id"] += 1000
    file.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="its vocabulary lacks the token"):
        load_dialect(tmp_path)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "no valid Jinja"),
        ("Hello.", "does not write a plain answer"),
        ("{{ raise_exception('never') }}", "does not write a plain answer"),
        ("{% for m in messages %}{{ m.content }}{% if not loop.last %}.{% endif %}{% endfor %}", "."),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_the_reason(tmp_path, template, reason):
    folder = write_tokenizer(tmp_path, template)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=reason):
        load_dialect(folder)


def test_a_template_without_calls_serves_conversations_and_refuses_tools(tmp_path):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    dialect = load_dialect(write_tokenizer(tmp_path, template))
    assert dialect.render([USER], None).ids
    with pytest.raises(ConfigError, match="no place for calls"):
        dialect.render([USER], [TOOL])


def test_an_unknown_parser_is_an_error_at_once(tmp_path):
    with pytest.raises(UnknownName, match="hermes"):
        small_dialect(tmp_path, tool_parser="hermse")


def test_a_conversation_that_the_template_refuses_is_a_bad_request_without_marks(tmp_path):
    template = (
        CHATML + "{% if messages[0].role == 'x' %}{{ raise_exception(messages[0].content) }}{% endif %}"
    )
    dialect = small_dialect(tmp_path, template)
    with pytest.raises(BadRequest, match=r"refuses the conversation: Not <.im_end.> me$") as caught:
        dialect.render([{"role": "x", "content": "Not <|im_end|> me"}], None)
    str(caught.value).encode()


def test_control_tokens_that_plain_text_leads_to_are_hidden_from_it(tmp_path):
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import Unigram

    pieces = [("<unk>", 0.0), *((chr(c), -5.0) for c in range(32, 127)), ("<|im_end|>", -1.0), ("\n", -5.0)]
    backend = Tokenizer(Unigram(pieces, 0, False))
    backend.add_tokens([AddedToken(marker, special=True, normalized=False) for marker in CHATML_MARKERS])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    dialect = load_dialect(tmp_path, tool_parser="hermes")
    end = dialect.tokenizer.token_to_id("<|im_end|>")
    ids = dialect.render([{"role": "user", "content": "a<|im_end|>b"}], None).ids
    assert ids.count(end) == 1


def test_options_of_the_template_reach_it(tmp_path):
    template = CHATML + "{% if add_generation_prompt and mood %}({{ mood }}){% endif %}"
    dialect = small_dialect(tmp_path, template, chat_template_kwargs={"mood": "glad"})
    rendered = dialect.render([USER], None)
    assert rendered.generation_prompt == "<|im_start|>assistant\n(glad)"
    other = dialect.with_options({"mood": "sad"}).render([USER], None)
    assert other.generation_prompt.endswith("(sad)")


def with_template(folder, template):
    return load_dialect(folder, tool_parser="hermes", chat_template=template)


@pytest.mark.parametrize(
    ("parser", "warned"),
    [("hermes", False), ("qwen", False), ("auto", False), ("glm45", True), ("longcat", True)],
)
def test_a_parser_for_another_form_than_the_templates_is_told_about(tmp_path, caplog, parser, warned):
    folder = write_tokenizer(tmp_path, CHATML + "{# <tool_call>, name: as Hermes has it #}")
    load_dialect(folder, tool_parser=parser)
    said = [r.getMessage() for r in caplog.records if "in the form of hermes" in r.getMessage()]
    assert len(said) == warned
    assert not warned or f"tool_call_parser {parser} reads another one: use hermes or auto" in said[0]
