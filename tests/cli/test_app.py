"""The application gives options to the commands that a line names; names and help of all others stay."""

import typer.main

from kohort.cli import app


def _commands(group, prefix=""):
    found = {}
    for name, command in group.commands.items():
        found[prefix + name] = command
        found |= _commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {}
    return found


def test_only_named_commands_have_their_options_and_all_have_their_help():
    whole = _commands(typer.main.get_command(app.build()))
    named = _commands(typer.main.get_command(app.build(["hub", "start", "--json"])))
    assert list(named) == list(whole)
    assert [one.help for one in named.values()] == [one.help for one in whole.values()]
    assert [one.get_short_help_str() for one in named.values()] == [one.get_short_help_str() for one in whole.values()]

    def options(command):
        return [one.name for one in command.params]

    assert options(named["hub start"]) == options(whole["hub start"])
    assert len(options(whole["check"])) > len(options(named["check"]))


def test_a_shell_that_completes_a_line_sees_the_options_of_all_commands(kohort_here, monkeypatch):
    asked = []
    built = app.build
    monkeypatch.setattr(app, "build", lambda words=None: (asked.append(words), built(words))[1])
    kohort_here("--version")
    monkeypatch.setenv("_KOHORT_COMPLETE", "no_shell")
    kohort_here("--version")
    assert asked == [["--version"], None]
