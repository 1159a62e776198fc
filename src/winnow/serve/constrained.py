"""Answers that follow a schema, call functions strictly, or must call one: the grammar of a request's answers."""

from __future__ import annotations

from functools import partial

from winnow.serve.calls import Form
from winnow.serve.grammars import Grammar, Grammars
from winnow.serve.refusals import Refused
from winnow.serve.response_format import FORMAT
from winnow.serve.rules import ANY_OBJECT, Rules, Schema, Special, written
from winnow.serve.wanted import Wanted

_INSTEAD = {
    "tools": "Leave strict out.",
    "tool_choice": "Use auto or none, and ask for the call in a message.",
    FORMAT: "Leave it out, or the tools.",
}


def is_constrained(wanted: Wanted) -> bool:
    """True if answers may not be any text."""
    return wanted.format is not None or bool(wanted.strict or wanted.forced)


def grammar_of(grammars: Grammars, wanted: Wanted, form: Form | None) -> Grammar | None:
    """The grammar of answers that are constrained; None where no tool is there to be called. Raises Refused.

    form: in which calls of tools are written; None where there are none to call.
    """
    schema = wanted.format
    if form is None:
        return None if schema is None else grammars.compiled(partial(schema_grammar, schema.schema), schema.field)
    field = "tools" if wanted.strict else "tool_choice" if wanted.forced else FORMAT
    if form.grammar is None:
        raise Refused(
            f"{field} is not supported for this model: the response_template of its tokenizer says how calls are read, "
            f"and not how they are written. {_INSTEAD[field]}",
            field,
        )
    try:
        return grammars.compiled(partial(form.grammar, _rules(wanted)), field)
    except Refused:
        _check_alone(grammars, wanted)
        raise


def _rules(wanted: Wanted) -> Rules:
    functions = {each["function"]["name"]: each["function"]["parameters"] for each in wanted.tools}
    return Rules(
        {
            name: schema if name in wanted.strict else ANY_OBJECT
            for name, schema in functions.items()
            if not wanted.forced or name in wanted.forced
        },
        forced=bool(wanted.forced),
        once=wanted.one_call,
        answer=None if wanted.format is None else wanted.format.schema,
    )


def _check_alone(grammars: Grammars, wanted: Wanted) -> None:
    """Raises Refused for the first schema that is not supported, with its place."""
    if wanted.format is not None:
        grammars.compiled(partial(schema_grammar, wanted.format.schema), wanted.format.field)
    for place, each in enumerate(wanted.tools):
        if each["function"]["name"] in wanted.strict:
            grammar = partial(schema_grammar, each["function"]["parameters"])
            grammars.compiled(grammar, f"tools[{place}].function.parameters")


def schema_grammar(schema: Schema, special: Special) -> str:
    """Answers that follow a schema."""
    return f'{{"grammars": [{{"json_schema": {written(schema)}}}]}}'
