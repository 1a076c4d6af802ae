#!/usr/bin/env python3
"""A verdict on a rank names what the rank's node knows of the reason: a GPU that is too hot, errors
of a network interface, a slow PCIe link. Only the node that the verdict names is asked."""
import os
import signal
import unittest

from harness import BUILD, OK, WARN, Built, Cluster, cairn, run, wait_for

NODES, SLOW = 3, 2
STEP_US = 30000
RATE_MIN = 2.0  # a slow rank takes four times as long
HEALTHY = {
    "clock_mhz": 1980,
    "clock_max_mhz": 1980,
    "clock_reasons": 0,
    "temperature_c": 61,
    "pcie_gen": 5,
    "pcie_gen_max": 5,
    "pcie_width": 16,
    "pcie_width_max": 16,
}
HOT = {"clock_mhz": 1200, "clock_reasons": 0x40, "temperature_c": 91, "pcie_width": 8}


class Causes(Built):
    def write(self, path, text):
        """Replaces a file at once, so that a reader never sees half."""
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)

    def gpu(self, **changes):
        self.write("gpu", "".join(f"{k} {v}\n" for k, v in {**HEALTHY, **changes}.items()))

    def interface(self, errors):
        nic = "sys/class/net/eth7/"
        os.makedirs(os.path.join(self.folder, nic, "device"), exist_ok=True)
        for name, text in {
            "speed": "25000",
            "operstate": "up",
            "carrier_changes": "1",
            "statistics/rx_errors": str(errors),
            "statistics/tx_errors": "2",
        }.items():
            self.write(nic + name, text + "\n")

    def setUp(self):
        self.folder = self.new_folder()
        self.gpu()
        self.interface(errors=10)
        os.environ["CAIRN_FAKE_NVML"] = os.path.join(self.folder, "gpu")
        self.addCleanup(os.environ.pop, "CAIRN_FAKE_NVML")

    def verdicts(self, cluster):
        """Open verdicts on the slow rank, as another node's agent tells them."""
        seen = cluster.status(0).get("detection", {})
        return [
            each
            for each in seen.get("verdicts", [])
            if each["open"] and each["ranks"] == [SLOW] and each["rate"] > RATE_MIN
        ]

    def causes(self, cluster, kinds):
        """The verdict that has all of these causes: a reading may have begun before the trouble."""
        for verdict in self.verdicts(cluster):
            if kinds <= {each["kind"] for each in verdict["causes"]}:
                return verdict
        return None

    def test_a_hot_gpu_and_a_bad_interface(self):
        cluster = self.cluster(
            nodes=NODES,
            parity=1,
            options=f"nvml_library: {os.path.join(BUILD, 'libfakenvml.so')}\n"
            f"sysfs_dir: {os.path.join(self.folder, 'sys')}",
        )
        cluster.start()
        cluster.train(timing=True, step_us=STEP_US, elements=2000)
        wait_for(
            "the ranks' normal is known",
            lambda: cluster.status(0).get("detection", {}).get("calibrated"),
            60,
        )
        self.gpu(**HOT, xid_count=2, xid=79)
        self.interface(errors=15)
        cluster.trainers[SLOW].process.send_signal(signal.SIGUSR1)
        kinds = {"xid_error", "clocks_throttled", "pcie_slow", "nic_errors"}
        verdict = wait_for("the verdict has all causes", lambda: self.causes(cluster, kinds))
        self.assertEqual({each["node"] for each in verdict["causes"]}, {SLOW}, verdict)
        causes = {each["kind"]: each for each in verdict["causes"]}
        self.assertEqual(set(causes), kinds, verdict)
        self.assertEqual(
            [(causes[kind]["value"], causes[kind]["normal"]) for kind in sorted(causes)],
            [(1200, 1980), (5, 0), (8, 16), (79, 0)],
        )
        self.assertIn("too hot (91 C)", causes["clocks_throttled"]["what"])

        code, shown, _ = run("status", "--agent", cluster.socket(1))
        self.assertEqual(code, WARN)
        self.assertIn(f"on node {SLOW} GPU 0 reported XID 79", shown)
        code, answer, talk = cairn("explain", str(verdict["verdict"]), "--agent", cluster.socket(1))
        self.assertIn(code, (OK, WARN), talk)
        story = "\n".join(answer["story"])
        self.assertIn("runs at 1200 of 1980 MHz", story)
        _, history, _ = cairn("history", "--agent", cluster.socket(0))
        told = [
            each
            for each in history["events"]
            if (each["kind"], each.get("subject")) == ("cause", verdict["verdict"])
        ]
        self.assertEqual({each["node"] for each in told}, {SLOW})
        self.assertEqual({each["why"] for each in told}, {each["what"] for each in causes.values()})
        code, shown, error = run("explain", told[0]["id"], "--agent", cluster.socket(1))
        self.assertEqual(code, OK, error)
        self.assertRegex(shown, rf"because .* verdict {verdict['verdict']} opened")
        self.assertIn("detect: cause=clocks_throttled on this node: ", cluster.log(SLOW))
        self.assertNotIn("cause=", cluster.log(0))

        self.gpu()
        cluster.trainers[SLOW].process.send_signal(signal.SIGUSR2)
        wait_for("the verdict is closed", lambda: not self.verdicts(cluster))

    def test_a_rank_that_waits_for_storage_or_its_data_loader(self):
        """The kernel has a process wait for a disk, the rank's own or its loader's. No GPU and no
        interface is needed to see it."""
        for waits, kind in (("storage", "storage"), ("loader", "data_loader")):
            with Cluster(nodes=NODES, parity=1, options="scrub_interval_ms: 0") as cluster:
                cluster.start()
                cluster.train(timing=True, step_us=STEP_US, elements=2000, waits=waits)
                wait_for(
                    "the ranks' normal is known",
                    lambda: cluster.status(0).get("detection", {}).get("calibrated"),
                    60,
                )
                cluster.trainers[SLOW].process.send_signal(signal.SIGUSR1)

                def found():
                    verdict = self.causes(cluster, {kind})
                    return verdict and [each for each in verdict["causes"] if each["kind"] == kind]

                (cause,) = wait_for(f"the cause is {kind}", found)
                self.assertEqual(cause["node"], SLOW)
                self.assertIn(f"rank {SLOW} ", cause["what"])
                told = [each["why"] for each in cluster.events("cause")]
                self.assertIn(cause["what"], told)


if __name__ == "__main__":
    unittest.main()
