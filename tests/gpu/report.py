"""The table at the end of a run, as text and as Markdown: one row for each figure, with what it is measured beside."""

import dataclasses
import re

STAGING_TARGET = 0.90  # of a plain pinned copy's bandwidth
KERNEL_TARGET = 0.85  # of a copy's bandwidth within the GPU
IDLE_TARGET = 1.02  # of an iteration's time without a daemon


@dataclasses.dataclass
class Row:
    what: str
    ours: str
    beside: str = ""
    ratio: str = ""
    target: str = ""


def size(bytes_):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if bytes_ >= factor:
            return f"{bytes_ / factor:g} {unit}"
    return f"{bytes_} B"


def times(samples):
    return f"{samples['median']:.1f} us, p99 {samples['p99']:.1f}"


def verdict(target, holds):
    return f"{target}: {'met' if holds else 'MISSED'}"


def of_operations(figures):
    what = f"cases up to {size(figures['operations']['largest_bytes'])}"
    yield Row(what, f"{figures['checked']} checks, {figures['wrong']} wrong", "host memory, the values")


def of_calls(figures):
    yield Row("calls", f"{figures['checked']} results, bitwise", "the same on the CPU")


def of_training(figures):
    for model, each in figures.items():
        bits = "bitwise the default's" if each["overlap_bitwise"] else "not bitwise the default's, which differs from run to run"
        yield Row(model, f"differs by {each['difference_from_cpu']:.2g}; overlap is {bits}", "the CPU's run", "", f"<= {each['tolerance']:g}: met")


def of_staging(figures):
    for way in ("device_to_host", "host_to_device", "both_at_once"):
        each = figures["staging"][way]
        what = f"{way.replace('_', ' ')}, {size(figures['staging']['bytes'])}"
        ours = f"{each['ours_gb_per_s']:.2f} GB/s, p99 {each['ours_ms']['p99']:.1f} ms"
        plain = f"plain copy {each['plain_gb_per_s']:.2f} GB/s, p99 {each['plain_ms']['p99']:.1f} ms"
        yield Row(what, ours, plain, f"{each['ratio']:.2f}", verdict(f">= {STAGING_TARGET}", each["ratio"] >= STAGING_TARGET))


def of_latency(figures):
    for bytes_, each in figures["latency"].items():
        what = f"allreduce of {size(int(bytes_))}, one rank"
        beside = f"host memory {times(each['host_memory_us'])}; copies {times(each['plain_copies_us'])}"
        yield Row(f"{what}, tl_wait", times(each["tl_wait_us"]), beside, f"{each['ratio']:.2f}")
        yield Row(f"{what}, a stream waits", times(each["stream_wait_us"]))
        yield Row(f"{what}, added by staging", times(each["added_us"]))
    urgent = figures["urgent"]
    yield Row(f"urgent {size(urgent['urgent_bytes'])} behind bulk {size(urgent['bulk_bytes'])}", times(urgent["behind_bulk_us"]),
              f"alone {times(urgent['alone_us'])}; bulk {times(urgent['bulk_us'])}", f"{urgent['ratio']:.2f}")


def of_overlap(figures):
    for bytes_, each in figures["overlap"].items():
        beside = f"host memory {times(each['host_memory_us'])}; copies {times(each['plain_copies_us'])}"
        yield Row(f"allreduce of {size(int(bytes_))}, two daemons", times(each["gpu_memory_us"]), beside, f"{each['ratio']:.2f}")


def of_kernels(figures):
    for kernel, each in figures["kernels"].items():
        yield Row(f"{kernel}, {size(each['bytes'])} each", f"{each['gb_per_s']['median']:.0f} GB/s", f"copy {each['copy_gb_per_s']['median']:.0f} GB/s",
                  f"{each['ratio']:.2f}", verdict(f">= {KERNEL_TARGET}", each["ratio"] >= KERNEL_TARGET))


def of_sharing(figures):
    yield Row("sums of a host's ranks on their GPU", f"{figures['checked']} checks, {figures['wrong']} wrong", "host memory")
    for bytes_, each in figures["sharing"].items():
        yield Row(f"allreduce of {size(int(bytes_))}, two hosts with two ranks each", times(each["shared_us"]),
                  f"each rank copies all of it: {times(each['copied_us'])}", f"{each['ratio']:.2f}")


def of_cpu(figures):
    for bytes_, each in figures["cpu"].items():
        for way, cost in each.items():
            if way != "host_memory":
                others = f"other threads {cost['library_and_driver_threads_us']:.1f} us of {cost['wall_us']:.1f}"
                beside = f"host memory: caller {each['host_memory']['caller_us']:.1f} us"
                yield Row(f"{size(int(bytes_))}, {way}", f"caller {cost['caller_us']:.1f} us, {others}", beside)


def of_idle(figures):
    ratio = figures["ratio"]
    ours = f"{figures['joined_ms']:.3f} ms (median of {figures['pairs']} pairs)"
    seen = f"{ratio:.4f} ({figures['lowest_ratio']:.3f} to {figures['highest_ratio']:.3f})"
    without = f"without {figures['alone_ms']:.3f} ms"
    yield Row("an iteration with an idle daemon and a joined job", ours, without, seen, verdict(f"<= {IDLE_TARGET}", ratio <= IDLE_TARGET))


def of_peers(figures):
    for bytes_, each in figures["sizes"].items():
        ours = each["tensorlane"]
        for name, peer in each.items():
            if name != "tensorlane":
                yield Row(f"allreduce of {size(int(bytes_))}, two hosts", f"{ours['median_us']:.1f} us, p99 {ours['p99_us']:.1f}",
                          f"{name} {peer['median_us']:.1f} us, p99 {peer['p99_us']:.1f}", f"{peer['ratio']:.2f} times as fast")


def of_cores(figures):
    for layout, results in figures["bench"].items():
        for each in results:
            row = Row(f"{layout}, {size(each['bytes'])}", f"{each['tensorlane_s_median'] * 1e6:.1f} us, p99 {each['tensorlane_s_p99'] * 1e6:.1f}")
            for name, peer in each.get("peers", {}).items():
                row.beside = f"{name} {peer['s_median'] * 1e6:.1f} us, p99 {peer['s_p99'] * 1e6:.1f}"
                row.ratio = f"{peer['ratio']:.2f} times as fast"
            yield row
    for rails, results in figures["rails"].items():
        for each in results:
            gain = each["gain"]
            yield Row(f"two hosts, {rails}, {each['lanes']} lanes", f"{each['median'] * 1e3:.2f} ms, p99 {each['p99'] * 1e3:.2f}", "1 lane",
                      f"{gain['median']:.2f} times as fast ({gain['low']:.2f} to {gain['high']:.2f})")


ROWS = {
    "operations_one_daemon": of_operations, "operations_two_daemons": of_operations, "calls": of_calls, "training": of_training, "staging": of_staging,
    "latency": of_latency, "overlap": of_overlap, "sharing": of_sharing, "kernels": of_kernels, "cpu": of_cpu, "idle": of_idle, "peers": of_peers, "cores": of_cores,
}


def rows(name, result):
    """Of a part: its figures, or why there are none; then what of it was left out, by name."""
    if result["state"] != "passed":
        yield Row(result["state"].upper(), shortly(result["reason"]))
        return
    figures = result["figures"]
    yield from ROWS[name](figures)
    for what in ("skipped", "failed"):
        for key, why in figures.get(what, {}).items() if name in ("peers", "cores") else ():
            yield Row(f"{key}: {what}", shortly(why))


def shortly(reason):
    """The first line of a reason, and of what the program said the line that tells most."""
    first, *said = [line.strip() for line in reason.strip().splitlines()]
    telling = [line for line in said if re.search(r"WRONG|Error|gpu_check:", line)] or said[:1]
    return " ".join([first, *telling[:1]])[:200]


HEADINGS = ("part", "what", "tensorlane", "beside", "ratio", "target")


def lines_of(report):
    for name, result in report["parts"].items():
        means_nothing = report["machine"]["fake"] and not result["correctness"]
        for row in rows(name, result):
            yield (name, row.what, row.ours, row.beside, row.ratio, "" if means_nothing else row.target)


def as_text(report):
    table = [HEADINGS, *lines_of(report)]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table)


def as_markdown(report):
    machine = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    cells = [HEADINGS, ("---",) * len(HEADINGS), *lines_of(report)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in cells)
    return f"{machine}\n\n{table}\n"
