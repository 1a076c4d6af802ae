#!/usr/bin/env python3
"""Man pages and completions: every verb and option is in each, man pages have no warnings, and bash
completes what each word can be."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
CAIRN = os.path.join(ROOT, "build", "plain", "cairn")

# Completes a line as bash does: its words, and the empty one behind a space.
COMPLETE = r"""
source "$1"
COMP_LINE=$2 COMP_POINT=${#2}
read -ra COMP_WORDS <<<"$2"
[[ $2 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_cairn 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"""
# Stands for a node with agents: what the completion asks for depends on the machine.
NODE = """#!/bin/sh
[ "$1 $2" = "manual words" ] || exit 64
case $3 in
JOB) printf 'llama-7b\\nllama-70b\\n' ;;
E:S) printf '1:30\\n1:45\\n2:5\\n' ;;
esac
"""


def output_of(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command} exits {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def verbs():
    found = re.findall(r"^  ([a-z]+) +[a-z]", output_of(CAIRN, "help"), re.M)
    return [verb for verb in found if verb not in ("help", "version", "cairn")]


def options(verb):
    """(long, letter or "") of each option in the verb's help."""
    text = output_of(CAIRN, "help", verb).split("\noptions:\n")[1].split("\nexamples:\n")[0]
    return [(long, letter) for letter, long in re.findall(r"^  (?:-(.), )?--([a-z-]+)", text, re.M)]


class Tables(unittest.TestCase):
    def part(self, form, text, verb):
        """The verb's part of a completion."""
        if form == "fish":
            lines = text.splitlines()
            return "\n".join(line for line in lines if f"'__cairn_verb {verb}'" in line)
        return re.search(rf"^    (?:\*:)?{verb}\)\n(.*?)^        ;;$", text, re.M | re.S)[1]

    def test_every_verb_and_option_is_in_each(self):
        self.assertGreater(len(verbs()), 20)
        shells = {form: output_of(CAIRN, "manual", form) for form in ("bash", "zsh", "fish")}
        whole = output_of(CAIRN, "manual", "man")
        for verb in verbs():
            self.assertIn(f"cairn\\-{verb}\\fR(1)", whole)
            page = output_of(CAIRN, "manual", "man", verb).replace("\\-", "-")
            self.assertGreater(len(options(verb)), 1, verb)
            parts = {form: self.part(form, text, verb) for form, text in shells.items()}
            for long, letter in options(verb):
                self.assertRegex(page, rf"\\fB--{long}\\fR")
                self.assertRegex(parts["bash"], rf"[' ]--{long}[' ]", verb)
                self.assertRegex(parts["zsh"], rf"--{long}[=\[}}]", verb)
                self.assertIn(f" -l {long} ", parts["fish"], verb)
                if letter:
                    self.assertIn(f"\\fB-{letter}\\fR, ", page, verb)
                    self.assertRegex(parts["bash"], rf" -{letter}[' ]", verb)
                    self.assertRegex(parts["zsh"], rf"{{-{letter}\+?,", verb)
                    self.assertRegex(parts["fish"], rf" -s {letter} ", verb)

    def test_the_agents_page_has_the_options_of_the_configuration(self):
        self.assertIn("\n  snapshot_every_steps: ", output_of(CAIRN, "manual", "man", "agent"))

    def test_shells_accept_them(self):
        for shell in ("bash", "zsh", "fish"):
            if shutil.which(shell):
                with tempfile.NamedTemporaryFile("w", suffix=shell) as file:
                    file.write(output_of(CAIRN, "manual", shell))
                    file.flush()
                    output_of(shell, "-n", file.name)

    def test_pages_have_no_warnings(self):
        checks = [["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-k", "-man", "-ww", "-z"]]
        checks = [check for check in checks if shutil.which(check[0])]
        if not checks:
            self.skipTest("neither mandoc nor groff is installed")
        for verb in [None, *verbs()]:
            page = output_of(CAIRN, "manual", "man", *filter(None, [verb]))
            for check in checks:
                done = subprocess.run(check, input=page, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), verb)

    def test_unknown_forms_and_verbs_are_wrong_usage(self):
        for words in ([], ["tcsh"], ["man", "keeper"], ["bash", "status"]):
            done = subprocess.run([CAIRN, "manual", *words], capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (64, b""), words)
        done = subprocess.run([CAIRN, "status", "--help=tcsh"], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 64)


class Bash(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="cairn-manual-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.completion = os.path.join(cls.folder.name, "completion")
        for name, text in (
            ("completion", output_of(CAIRN, "manual", "bash")),
            ("node", NODE),
            ("checkpoint.safetensors", ""),
        ):
            with open(os.path.join(cls.folder.name, name), "w", encoding="utf-8") as file:
                file.write(text)
        os.chmod(os.path.join(cls.folder.name, "node"), 0o755)

    def complete(self, line):
        command = ["bash", "-c", COMPLETE, "bash", self.completion, line]
        return output_of(*command, cwd=self.folder.name).split()

    def test_verbs_and_options(self):
        self.assertEqual(self.complete("cairn sta"), ["status"])
        self.assertEqual(set(self.complete("cairn ")), {*verbs(), "help", "version"})
        self.assertEqual(self.complete("cairn help resto"), ["restore"])
        self.assertEqual(self.complete("cairn status --j"), ["--job"])
        self.assertEqual(self.complete("cairn restore --dry-run --ge"), ["--generation"])
        self.assertEqual(self.complete("cairn status --dry"), [])
        self.assertEqual(self.complete("cairn run --res"), ["--resume"])
        self.assertEqual(self.complete("cairn run -- ./train --res"), [])

    def test_values(self):
        self.assertEqual(set(self.complete("cairn snapshots -o ")), {"table", "json"})
        self.assertEqual(self.complete("cairn snapshots --output=j"), ["json"])
        self.assertEqual(self.complete("cairn node rep"), ["replace"])
        self.assertEqual(self.complete("cairn bench prot"), ["protect"])
        megatron = {"megatron", "megatron-dist"}
        self.assertEqual(set(self.complete(f"{CAIRN} convert --to mega")), megatron)
        self.assertEqual(self.complete(f"{CAIRN} convert --map qwen3-"), ["qwen3-moe"])
        self.assertEqual(self.complete("cairn detect --seconds "), [])

    def test_files(self):
        self.assertEqual(self.complete("cairn inspect ch"), ["checkpoint.safetensors"])
        self.assertEqual(self.complete("cairn agent --config comp"), ["completion"])
        self.assertEqual(self.complete("cairn restore --to ch"), [])  # no folder

    def test_what_the_machine_has(self):
        self.assertEqual(self.complete("./node status --job "), ["llama-7b", "llama-70b"])
        self.assertEqual(self.complete("./node status --job llama-70"), ["llama-70b"])
        self.assertEqual(self.complete("./node restore --generation "), ["1:30", "1:45", "2:5"])
        # bash replaces only what is behind the last colon
        self.assertEqual(self.complete("./node restore --generation 1:4"), ["45"])


# Stand for zsh's own functions: what is offered is printed.
ZSH = r"""
compadd() { print -l -- $found }
_call_program() { shift; eval "$@" }
source <(sed '$d' "$1")
_cairn_words -J group FORMAT
"""


class OtherShells(unittest.TestCase):
    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_asks_the_command(self):
        path = os.pathsep.join([os.path.dirname(CAIRN), os.environ["PATH"]])
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(output_of(CAIRN, "manual", "zsh"))
            file.flush()
            words = output_of("zsh", "-fc", ZSH, "zsh", file.name, env={**os.environ, "PATH": path})
        self.assertEqual(words, output_of(CAIRN, "manual", "words", "FORMAT"))

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_completes(self):
        path = os.pathsep.join([os.path.dirname(CAIRN), os.environ["PATH"]])
        with tempfile.TemporaryDirectory() as home, tempfile.NamedTemporaryFile("w") as file:
            file.write(output_of(CAIRN, "manual", "fish"))
            file.flush()
            environment = {**os.environ, "PATH": path, "HOME": home}
            for line, wanted in (
                ("cairn statu", ["status"]),
                ("cairn status --jo", ["--job"]),
                ("cairn convert --to mega", ["megatron", "megatron-dist"]),
                ("cairn snapshots -o js", ["json"]),
            ):
                script = f"source {file.name}; complete -C '{line}'"
                found = output_of("fish", "-c", script, env=environment).splitlines()
                self.assertEqual([word.split("\t")[0] for word in found], wanted, line)


if __name__ == "__main__":
    unittest.main()
