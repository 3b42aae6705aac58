"""The command line as tests call it, in their own process."""

from fedpriv.cli.main import run


def call(capsys, *arguments):
    """Run a command; return its exit code and what it wrote to standard output and standard error."""
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def done(capsys, *arguments):
    """Run a command to its good end; return what it wrote to standard output."""
    code, out, err = call(capsys, *arguments)
    assert code == 0, (arguments, err)
    return out


def refused(capsys, *arguments):
    """Return the one line in which a command is refused."""
    code, _, err = call(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1), (arguments, err)
    assert "Traceback" not in err
    assert len(err) < 1500
    return " ".join(err.split())


def words(line):
    """Return the words of a command without quotes."""
    return line.split()
