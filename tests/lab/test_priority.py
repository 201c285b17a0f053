"""What a strict port is for: a and b send to c, a bulk without end, b 1 MiB urgent messages. Plain sockets, no daemon.

Strict: at most 1.3 times the unloaded time at the median. FIFO: at least 1.8 times."""

import sys

from lab_harness import BULK, URGENT, Lab, median_ms, require_namespaces, settle

UNKNOWN = URGENT + 1  # of no class: served last


def main():
    require_namespaces()
    with Lab(hosts=3, policy="strict") as lab:
        lab.start_sink("h2", [URGENT, BULK, UNKNOWN])
        unloaded = median_ms(lab.message_times("h1", "h2", URGENT))
        flood = lab.start_flood("h0", "h2", BULK)
        settle()
        ratio = {}
        for policy in ("strict", "fifo"):
            lab.policy(policy)
            settle()
            ratio[policy] = median_ms(lab.message_times("h1", "h2", URGENT)) / unloaded
            print(f"{policy}: {ratio[policy]:.2f} times the unloaded {unloaded:.2f} ms", flush=True)
        assert ratio["strict"] <= 1.3, ratio
        assert ratio["fifo"] >= 1.8, ratio

        # A DSCP of no class, one bit beside urgent's, waits until bulk leaves it something.
        lab.policy("strict")
        settle()
        before = lab.queue_bytes("s0", "h2")
        starved = lab.start_flood("h1", "h2", UNKNOWN)
        settle()
        after = lab.queue_bytes("s0", "h2")
        served = {leaf: after[leaf] - before[leaf] for leaf in after}
        print(f"beside bulk, traffic of no class got {served[0x13]} of {served[0x13] + served[0x12]} bytes", flush=True)
        assert served[0x12] > 20_000_000 / 8 and served[0x13] < served[0x12] / 20, served
        flood.terminate()
        settle()
        assert lab.queue_bytes("s0", "h2")[0x13] - after[0x13] > 1_000_000, "and then gets the link"
        starved.terminate()


if __name__ == "__main__":
    sys.exit(main())
