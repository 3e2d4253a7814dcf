"""`make chaos`: SIGKILL and SIGSTOP on real processes under load. Prints a table and writes chaos.json."""

import argparse
import json
import logging
import secrets
import sys
from pathlib import Path

import uvloop

from tests.chaos.report import table, violations
from tests.chaos.run import chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--seconds", type=float, default=300, help="of faults")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--calm", type=int, default=3, help="single kills of each kind before it, in a calm system")
    parser.add_argument("--output", type=Path, default=Path("chaos.json"))
    parser.add_argument("--keep", action="store_true", help="the folder with the logs of all processes")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # that the broker is away is the point of it
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is one that can
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    found = uvloop.run(chaos(arguments.seconds, seed, calm_kills=arguments.calm, keep=arguments.keep))
    arguments.output.write_text(json.dumps(found.result, indent=2) + "\n")
    wrong = violations(found.result)
    ends = f"written to {arguments.output}; " + (f"WRONG: {'; '.join(wrong)}" if wrong else "nothing is wrong")
    sys.stdout.write("\n".join([*found.stories, "", *table(found.result), "", ends, ""]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
