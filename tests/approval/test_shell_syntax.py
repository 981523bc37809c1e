"""Shell syntax that dash, bash and the parser read differently, or that runs code in an unexpected place."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

# The shell is dash, and the parser reads bash. In these lines they differ, or the parser misses a command.
LINES = [
    ("echo ${x:-`reboot`}", "a backquote in an expansion"),
    ('echo "${x:-`reboot`}"', "a backquote in a quoted expansion"),
    (": ${x:=`reboot`}", "a backquote in an assigning expansion"),
    ("echo \"${x:-'$(reboot)'}\"", "single quotes have no effect inside double quotes"),
    ("echo \"${x:-'`reboot`'}\"", "the same with backquotes"),
    ("echo `echo \\`rm README.md\\``", "nested backquotes"),
    ('echo "`echo \\`rm README.md\\``"', "nested backquotes in quotes"),
    ("echo $'\\'; rm README.md; echo '\\'", "dash does not support $'…': the string ends at the first quote"),
    ("echo $(('$(reboot)'))", "quotes have no effect in arithmetic"),
    ("echo $[\nreboot\n]", "dash does not support $[…]"),
    ("a[\nreboot\n]=1", "dash does not support arrays"),
    ("x=$ reboot", "a single $ ends the word"),
    ("x=\\  reboot", "an escaped space is the value, and the next word is the command"),
    ("x=\\\n reboot", "a continued line"),
    ("x=\\\n reboot ls", "a continued line; the parser takes the command for arguments"),
    ("echo \\ # a;reboot", "after an escaped space, # does not start a comment"),
    ("echo \\ # $(reboot)", "the same with a substitution"),
    ('echo "$(test do =~;reboot)"', "an operator of tests in bash is a word in dash"),
    ("true; [[ a || reboot ]]", "in dash, these are two commands"),
    ("true; [[ a && reboot ]]", "in dash, these are two commands"),
    ("true; ((reboot))", "in dash, a subshell inside a subshell"),
    ("ls\n\\reboot", "the parser takes an escaped letter on a new line for an argument of the previous command"),
    ("ls\rreboot", "a hidden character"),
    ("ls\u200b", "a hidden character"),
    ("ls\u00a0-la", "a hidden character"),
    ("ls \u202e", "a hidden character"),
    ("f() { ls; }; f", "a function"),
    ("function f { ls; }; f", "a function"),
    ("alias ls=reboot", "an alias"),
    ("cat <(reboot)", ""),
    ("echo $(reboot)", ""),
    ("! reboot", ""),
    ("until reboot; do ls; done", ""),
    ("case $(reboot) in x) ls;; esac", ""),
    ("case x in x) reboot;; esac", ""),
    ("coproc reboot", ""),
    ("time reboot", ""),
    ("r\\eboot", ""),
    ('r"eboot"', ""),
    ("$'reboot'", ""),
    ("x=reboot; $x", ""),
    ("${x:-reboot}", ""),
    ("cat${IFS}.env", ""),
]

# Shells that are named in the command do more with their arguments than dash.
OTHER_SHELLS = [
    ("bash -c \"test -v 'a[\\$(rm README.md)]'\"", "a subscript is evaluated"),
    ("bash -c \"[ -v 'a[\\$(rm README.md)]' ]\"", "a subscript is evaluated"),
    ("bash -c \"[[ -v 'a[\\$(rm README.md)]' ]]\"", "a subscript is evaluated"),
    ("bash -c \"[[ 'a[\\$(rm README.md)]' -eq 0 ]]\"", "a number is evaluated"),
    ("bash -c \"printf -v 'a[\\$(rm README.md)]' x\"", "a variable name is evaluated"),
    ("bash -c \"read 'a[\\$(rm README.md)]' < README.md\"", "a variable name is evaluated"),
    ("bash -c \"unset 'a[\\$(rm README.md)]'\"", "a variable name is evaluated"),
    ("bash -c \"let 'a[\\$(rm README.md)]'\"", "arithmetic is evaluated"),
    ("bash -c \"x='b[\\$(rm README.md)]'; echo \\$((x))\"", "a value is evaluated as arithmetic"),
    ("bash -c \"x='\\$(rm README.md)'; echo \\${x@P}\"", "a value is expanded as a prompt"),
    ("bash -c 'x=AWS_SECRET; echo ${!x}'", "reads the variable whose name is the value of another"),
    ("bash -c 'hash -p ./bin/ls ls; ls'", "makes a name run another program"),
    ("bash -c 'PATH[0]=./bin; ls'", "PATH as an array"),
    ("bash -c 'cat {.env,README.md}'", "braces expand to several words"),
    ("echo 'rm README.md' | bash -s - --version", "after - there are no more options: it runs its input"),
    ("echo 'rm README.md' | bash -s -- --version", "the same after --"),
    ("echo 'rm README.md' | bash -s -- -c ls", "-c is not an option here"),
    ("bash --rcfile -c ls", "-c is the value of --rcfile, and ls a script"),
    ("zsh -c \"echo *(e'rm x')\"", "the syntax of another shell"),
    ("ksh -c 'echo ${ rm x;}'", "the syntax of another shell"),
    ("bash -c 'x=\"-v PATH ./bin\"; printf $x; ls'", "printf -v sets a variable"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_syntax_that_shells_read_differently_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"


@pytest.mark.parametrize(("line", "reason"), OTHER_SHELLS, ids=[repr(line) for line, _ in OTHER_SHELLS])
def test_a_line_for_another_shell_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
