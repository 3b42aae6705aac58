"""The command line as tests call it, in their own process."""

from fedpriv.cli.main import run


def call(capsys, *arguments):
    """Run a command; return its exit code and what it wrote to standard output and standard error."""
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def words(line):
    """Return the words of a command without quotes."""
    return line.split()
