"""The `cometmq` command, and `python -m cometmq`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its extra, print the line that installs it and exit with 2."""
    try:
        from cometmq.cli.main import main as run
    except ModuleNotFoundError as error:
        from cometmq.extras import install_line

        line = install_line(error.name or "")
        if line is None:
            raise
        sys.stderr.write(f"cometmq: the command line needs {error.name}: {line}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
