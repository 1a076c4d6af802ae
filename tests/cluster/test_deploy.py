#!/usr/bin/env python3
"""The examples of examples/deploy: the Slurm scripts run as Slurm runs them, with a stand-in for
scontrol; systemd's units verified and rated, and a verdict handed over."""
import json
import os
import re
import shutil
import subprocess
import unittest

from harness import (
    CAIRN,
    OK,
    PATIENCE,
    ROOT,
    Built,
    cairn,
    free_ports,
    pids_with,
    text_of,
    wait_for,
)

DEPLOY = os.path.join(ROOT, "examples", "deploy")
SERVICES = ["cairn-agent.service", "cairn-enforce@.service", "cairn-metrics.service"]


class Deploy(Built):
    def setUp(self):
        self.dir = self.new_folder()

    def script(self, name, env):
        return subprocess.run(
            [os.path.join(DEPLOY, name)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )

    def test_slurm(self):
        commands, etc = os.path.join(self.dir, "bin"), os.path.join(self.dir, "etc")
        os.mkdir(commands)
        os.mkdir(etc)
        os.symlink(CAIRN, os.path.join(commands, "cairn"))
        with open(os.path.join(commands, "scontrol"), "w") as file:
            file.write('#!/bin/sh\n[ "$*" = "show hostnames localhost" ] && echo localhost\n')
        os.chmod(os.path.join(commands, "scontrol"), 0o755)
        with open(
            os.open(os.path.join(etc, "site.key"), os.O_WRONLY | os.O_CREAT, 0o600), "wb"
        ) as file:
            file.write(os.urandom(32))
        with open(os.path.join(etc, "agent.yaml.in"), "w") as file:
            file.write("state_bytes: 1MiB\nkeeper_linger_s: 60\n")
        env = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "CAIRN_ETC": etc,
            "CAIRN_RUN": self.dir,
            "CAIRN_PORT": str(free_ports(1)[0]),
            "SLURM_JOB_ID": "7",
            "SLURM_NODELIST": "localhost",
            "SLURMD_NODENAME": "localhost",
        }
        run = os.path.join(self.dir, "job-7")
        self.addCleanup(self.script, "slurm-epilog.sh", env)
        prolog = self.script("slurm-prolog.sh", env)
        self.assertEqual((prolog.returncode, prolog.stdout), (OK, ""))
        log = os.path.join(run, "agent.log")
        wait_for("the agent serves", lambda: "agent: serves" in text_of(log), 60)
        _, status, _ = cairn("status", "--agent", os.path.join(run, "agent", "agent.sock"))
        self.assertEqual((status["job"], len(status["nodes"])), ("slurm-7", 1))
        epilog = self.script("slurm-epilog.sh", env)
        self.assertEqual((epilog.returncode, epilog.stdout), (OK, ""))
        self.assertEqual(pids_with("agent", os.path.join(run, "agent.yaml")), [])
        # The job may be requeued: the memory stays, and the next agent takes it.
        self.assertEqual(
            len(pids_with("keeper", os.path.join(run, "agent", "state", "keeper.sock"))), 1
        )
        prolog = self.script("slurm-prolog.sh", env)
        self.assertEqual((prolog.returncode, prolog.stdout), (OK, ""))
        wait_for("the next agent serves", lambda: text_of(log).count("agent: serves") == 2, 60)
        with open(os.path.join(run, "agent", "over"), "w"):
            pass
        # A keeper that is slow to end, from when the epilog asks which process it is: the next job
        # may begin only when its memory is free.
        keeper_words = ("keeper", os.path.join(run, "agent", "state", "keeper.sock"))
        (keeper,) = pids_with(*keeper_words)
        with open(os.path.join(commands, "sed"), "w") as file:
            file.write(f"#!/bin/sh\nkill -STOP {keeper}\n")
            file.write(f"(sleep 1; kill -CONT {keeper}) > /dev/null 2>&1 &\n")
            file.write(f'exec {shutil.which("sed")} "$@"\n')
        os.chmod(os.path.join(commands, "sed"), 0o755)
        epilog = self.script("slurm-epilog.sh", env)
        self.assertEqual((epilog.returncode, epilog.stdout), (OK, ""))
        self.assertFalse(os.path.exists(run))
        self.assertEqual(pids_with("agent", os.path.join(run, "agent.yaml")), [])
        self.assertEqual(pids_with(*keeper_words), [])

    def test_slurm_without_the_key(self):
        """No agent runs with a key that everybody could derive; the job starts all the same."""
        etc = os.path.join(self.dir, "etc")
        os.mkdir(etc)
        for content in (None, ""):
            if content is not None:
                with open(os.path.join(etc, "site.key"), "w") as file:
                    file.write(content)
            prolog = self.script(
                "slurm-prolog.sh",
                {**os.environ, "CAIRN_ETC": etc, "CAIRN_RUN": self.dir, "SLURM_JOB_ID": "9"},
            )
            self.assertEqual(prolog.returncode, OK)
        run = os.path.join(self.dir, "job-9")
        self.assertEqual(text_of(os.path.join(run, "agent.log")).count("site.key"), 2)
        self.assertFalse(os.path.exists(os.path.join(run, "job.key")))
        self.assertFalse(os.path.exists(os.path.join(run, "agent.pid")))

    def test_slurm_agent_is_gone(self):
        """Agent and keeper ended before the job; other processes now have their process ids."""
        others = [subprocess.Popen(["sleep", str(600 * PATIENCE)]) for _ in range(2)]
        for other in others:
            self.end_with_test(other)
        run = os.path.join(self.dir, "job-8")
        os.makedirs(os.path.join(run, "agent", "state"))
        for name, text in (
            ("agent.pid", f"{others[0].pid}\n"),
            ("agent/state/keeper.sock.lock", f"pid {others[1].pid}\n"),
            ("agent/over", ""),
        ):
            with open(os.path.join(run, name), "w") as file:
                file.write(text)
        epilog = self.script(
            "slurm-epilog.sh", {**os.environ, "CAIRN_RUN": self.dir, "SLURM_JOB_ID": "8"}
        )
        self.assertEqual((epilog.returncode, epilog.stdout), (OK, ""))
        self.assertEqual([other.poll() for other in others], [None, None])
        self.assertFalse(os.path.exists(run))

    def unit(self, name):
        """A copy of a unit whose commands exist on this machine, under a name of its own."""
        text = text_of(os.path.join(DEPLOY, name))
        for command, present in (
            ("/usr/local/bin/cairn ", CAIRN + " "),
            ("/etc/cairn/enforce", "/bin/cat"),
        ):
            text = text.replace("ExecStart=" + command, "ExecStart=" + present)
        path = os.path.join(self.dir, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd(self):
        units = [self.unit(name) for name in SERVICES + ["cairn-enforce.socket"]]
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *units],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        complaints = [line for line in verified.stdout.splitlines() if "cairn-" in line]
        self.assertEqual(complaints, [])

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_sandbox(self):
        """Neither service is exposed more than 2.0 of 10, and the agent is not root."""
        for name in SERVICES:
            rated = subprocess.run(
                ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20"]
                + [self.unit(name)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            self.assertEqual(rated.returncode, 0, rated.stdout)
        self.assertNotIn("User=root", text_of(os.path.join(DEPLOY, "cairn-agent.service")))

    @unittest.skipUnless(
        shutil.which("systemd-socket-activate") and os.path.exists("/bin/nc.openbsd"),
        "systemd-socket-activate or nc of netcat-openbsd is not installed",
    )
    def test_verdict_is_handed_over(self):
        """The documented enforce_command passes the verdict, whole, to a command started apart."""
        text = text_of(os.path.join(DEPLOY, "cairn-enforce.socket"))
        words = re.search(r"enforce_command: \[(.*)\]", text).group(1).split(", ")
        listen = re.search(r"^ListenStream=(.*)$", text, re.M).group(1)
        self.assertEqual(words[-1], listen)
        path, taken = os.path.join(self.dir, "enforce.sock"), os.path.join(self.dir, "verdict")
        listener = subprocess.Popen(
            ["systemd-socket-activate", "--accept", "--inetd", "-l", path]
            + ["/bin/sh", "-c", 'cat > "$0.part" && mv "$0.part" "$0"', taken],
            stderr=subprocess.DEVNULL,
        )
        self.end_with_test(listener)
        wait_for("the socket listens", lambda: os.path.exists(path))
        verdict = json.dumps({"ranks": list(range(20000))})
        sent = subprocess.run(
            ["/bin/nc.openbsd", *words[1:-1], path],
            input=verdict,
            stdout=subprocess.DEVNULL,
            text=True,
            timeout=60 * PATIENCE,
            check=False,
        )
        self.assertEqual(sent.returncode, OK)
        wait_for("the verdict is taken", lambda: os.path.exists(taken))
        self.assertEqual(text_of(taken), verdict)


if __name__ == "__main__":
    unittest.main()
