"""`make rebuild-proof`: the views are the same however they were made. Prints checksums, counts and rates."""

import argparse
import json
import logging
import secrets
import sys
from pathlib import Path

import uvloop

from tests.proof.report import as_json, differences, tables
from tests.proof.run import prove


def main() -> int:
    parser = argparse.ArgumentParser(prog="rebuild-proof")
    parser.add_argument("--records", type=int, default=200_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--output", type=Path, default=None, help="a file for the same as JSON")
    arguments = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is one that can
    seed = secrets.randbelow(1_000_000) if arguments.seed is None else arguments.seed
    proof = uvloop.run(prove(arguments.records, seed))
    found = differences(proof)
    ends = [f"DIFFERENT: {line}" for line in found] or ["equal: every view, however it was made"]
    sys.stdout.write("\n".join(["", *tables(proof), "", *ends, ""]))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(as_json(proof), indent=2) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
