"""`threadlog` is one command with many subcommands; each is imported here and nowhere else."""

import os
import sys

import typer
from pydantic import ValidationError

from services.chassis.process.lifecycle import SETUP_STATUS
from services.chassis.removed_settings import removed_in
from services.cli import chat, database, export, generations, services, skills, tail, topics, verify
from services.cli.artifacts import command as artifacts
from services.cli.imports import command as import_
from services.cli.local import dev

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Durable agent sessions on a Kafka-compatible log.",
)
app.command("dev")(dev.dev)
app.command("chat")(chat.chat)
app.command("tail")(tail.tail)
app.add_typer(services.app, name="services")
app.add_typer(topics.app, name="topics")
app.command("migrate")(database.migrate_command)
app.command("rebuild")(generations.rebuild_command)
app.add_typer(generations.generations, name="generations")
app.command("verify")(verify.verify_command)
app.command("export")(export.export_command)
app.add_typer(import_.app, name="import")
app.add_typer(artifacts.app, name="artifacts")
app.add_typer(database.keys, name="keys")
app.add_typer(skills.app, name="skills")


def main() -> None:
    for removed in removed_in(os.environ):
        sys.stderr.write(f"threadlog: {removed}\n")
    try:
        app()
    except ValidationError as error:
        if not error.title.endswith("Settings"):
            raise
        wrong = [f"THREADLOG_{'.'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()]
        sys.stderr.write(f"threadlog: {'; '.join(wrong)} (.env.example says what each setting takes)\n")
        sys.exit(SETUP_STATUS)


if __name__ == "__main__":
    main()
