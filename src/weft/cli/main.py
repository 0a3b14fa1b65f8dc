"""The command line: `weft demo`, `weft explain FILE.py:NAME`, `weft bench`, `weft fuzz`, `weft doctor`, `weft cache`."""

from __future__ import annotations

from importlib import import_module

import click

from weft import __version__

_COMMANDS = {
    "bench": ("weft.cli.bench", "Time kernels, first calls and models beside PyTorch and Inductor."),
    "cache": ("weft.cli.cache", "List, print, check, remove and carry about compiled kernels."),
    "demo": ("weft.cli.bench", "Derive attention; compile four functions, show what was fused."),
    "doctor": ("weft.cli.doctor", "Check everything that weft needs or uses on this machine."),
    "explain": ("weft.cli.explain", "Compile a function or module of a file, print every decision."),
    "fuzz": ("weft.cli.fuzz", "Check random functions beside PyTorch, or random programs."),
}
"""Where each command is, under its name, and what `weft --help` says of it."""


class _Commands(click.Group):
    """Imports a command's module when the command is called: with all of them, `weft --help` took two seconds more."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="weft")
def main() -> None:
    """Turn plain PyTorch into a few fused, verified kernels."""


main.commands.update({name: click.Command(name) for name in _COMMANDS})  # click looks here for what was meant
