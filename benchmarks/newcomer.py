"""Type the commands of docs/get-started.md from a clean clone of this repository, and time them: `make newcomer`.

    python benchmarks/newcomer.py [--keep DIR]

All blocks of shell run as they stand, in one shell, and a block of YAML becomes the file that it names; only the
address of the repository is that of this checkout, of which what is committed is cloned. Prints the minutes after
every block: the last number is how long it takes from nothing to two models of one's own, trained, compared and looked
into.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESS = "ADDRESS-OF-THE-REPOSITORY"


def blocks() -> list[tuple[str, str]]:
    """Return the heading and the commands of every block of shell; of YAML the command that writes it."""
    text = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^## (.+?)\n|^```(?:sh|yaml)\n(?:# ([\w-]+\.yaml)\n)?(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    heading, made = "", []
    for title, file, body in found:
        if title:
            heading = title
        else:
            command = f"cat > {file} <<'END'\n{body}END\n" if file else body
            made.append((heading, command.replace(ADDRESS, str(ROOT))))
    return made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--keep", type=Path, help="an empty folder to work in, which is left there")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        shell = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
        assert shell.stdin is not None
        assert shell.stdout is not None
        for heading, body in blocks():
            shell.stdin.write(f"{body}\necho end-of-block\n")
            shell.stdin.flush()
            for line in shell.stdout:
                if line == "end-of-block\n":
                    break
                sys.stderr.write(line)
            else:
                raise SystemExit(f"{heading}: a command failed, see above")
            print(f"{(time.monotonic() - begun) / 60:6.1f} min  {heading}", flush=True)
        shell.stdin.close()
        shell.wait()


if __name__ == "__main__":
    main()
