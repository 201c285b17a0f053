"""Ports that the switch tool configures (its Linux target): the strict-port test passes with shapers on, also where the file gives urgent another DSCP;
it fails once the rendered map is broken; and beside saturating urgent and bulk, default traffic gets its guarantee."""

import sys
import time

from lab_harness import BULK, URGENT, Lab, median_ms, require_namespaces, settle, star, two_classes

OTHER = 34  # a DSCP of no class of the presets
DEFAULT = 0
DEFAULT_LEAF, URGENT_LEAF = 0x10, 0x15  # HTB minor numbers: 0x10 and the class's PCP
SPEED = 500e6
# switch-config/policy: strict classes have 5 + 5 + 50 % of this port, and of what they leave default has 29 %.
GUARANTEE = 0.40 * 0.29


def loaded_ratio(lab, dscp):
    """How much longer 1 MiB of a class takes beside bulk without end than alone."""
    unloaded = median_ms(lab.message_times("h1", "h2", dscp))
    flood = lab.start_flood("h0", "h2", BULK)
    settle()
    ratio = median_ms(lab.message_times("h1", "h2", dscp)) / unloaded
    flood.terminate()
    settle()
    return ratio


def guaranteed(lab):
    floods = [lab.start_flood("h0", "h2", BULK), lab.start_flood("h0", "h2", OTHER), lab.start_flood("h1", "h2", DEFAULT)]
    settle()
    before, begin = lab.queue_bytes("s0", "h2"), time.monotonic()
    time.sleep(2.0)
    after, took = lab.queue_bytes("s0", "h2"), time.monotonic() - begin
    for flood in floods:
        flood.terminate()
    rates = {leaf: (after[leaf] - before[leaf]) * 8 / took / SPEED for leaf in after}
    print("all saturating: " + ", ".join(f"1:{leaf:x} {rate:.1%}" for leaf, rate in sorted(rates.items())), flush=True)
    assert rates[DEFAULT_LEAF] >= 0.9 * GUARANTEE, rates
    assert 0.4 < rates[URGENT_LEAF] <= 0.51, rates


def main():
    require_namespaces()
    with Lab(policy="service", config=star(two_classes(OTHER), qos="{classes: {urgent: {shaper: 50 %}}}")) as lab:
        lab.start_sink("h2", [URGENT, OTHER, BULK, DEFAULT])
        ratio = loaded_ratio(lab, OTHER)
        print(f"urgent at DSCP {OTHER}: {ratio:.2f} times the unloaded time", flush=True)
        assert ratio <= 1.3, ratio
        of_no_class = loaded_ratio(lab, URGENT)
        print(f"DSCP {URGENT}, now of no class: {of_no_class:.2f} times", flush=True)
        assert of_no_class >= 1.5, of_no_class
        guaranteed(lab)

        lab.forget_urgent("s0", "h2")
        broken = loaded_ratio(lab, OTHER)
        print(f"without its line of the map at the port of h2: {broken:.2f} times", flush=True)
        assert broken >= 1.4, broken

        lab.policy("strict")
        assert loaded_ratio(lab, OTHER) <= 1.3
        lab.policy("service")
        assert loaded_ratio(lab, OTHER) <= 1.3


if __name__ == "__main__":
    sys.exit(main())
