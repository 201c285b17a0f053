"""The fabric: are the tags in force those asked for, does urgent traffic overtake, what do paths and NICs do."""

from panels import (
    Query, asked_for, board, by_priority, choice, classes, graph, hosts, link_to, most, numbers, of_hosts, quantile, rate, table, order_of_service,
)

HERE = 'and on (job, instance) tensorlane_host_info{host=~"$host"}'
NIC = "node_ethtool_"
TO_HOST = link_to("host", "This host", host="${__field.labels.host}")


def tags():
    rows = "class, transport, rail, asked_dscp, dscp, asked_pcp, pcp, service_level"
    wrong = "tensorlane_flows{{{0}!=\"-1\"}} unless on (job, instance, class, {0}) tensorlane_class_info"
    unlike = " - ".join(f"count(count by ({labels}) (tensorlane_class_info {HERE}))" for labels in ("class, dscp, pcp, service_level", "class"))
    return [
        table(
            "Tags in force against those asked for",
            "Flows that are up, by class, with the DSCP and priority that the sockets answer beside those of the fabric file; -1 is unknown. "
            "Good: asked and in force are equal in every row.",
            {
                "class": ("Class", ""), "transport": ("Transport", ""), "rail": ("Rail", ""), "asked_dscp": ("DSCP asked", ""), "dscp": ("DSCP in force", ""),
                "asked_pcp": ("PCP asked", ""), "pcp": ("PCP in force", ""), "service_level": ("Service level", ""), "Value #A": ("Flows", ""),
            },
            Query(f"sum by ({rows}) ({asked_for('tensorlane_flows')} {HERE})"),
            width=16,
        ),
        numbers(
            "Tags that are wrong",
            "Flows whose DSCP or priority is known and not the one asked for, flows that no line of the job dashboard shows, "
            "probes of the last 30 minutes whose DSCP changed on the way, "
            "and marks of classes on which the hosts' fabric files disagree. Good: 0 everywhere.",
            "short",
            Query(f"sum({wrong.format('dscp')} {HERE}) or vector(0)", "DSCP"),
            Query(f"sum({wrong.format('pcp')} {HERE}) or vector(0)", "PCP"),
            Query(f"sum(tensorlane_left_out_flows {HERE})", "left out"),
            Query(f"sum(increase(tensorlane_marks_changed_total[30m]) {HERE}) or vector(0)", "changed on the way"),
            Query(unlike, "unlike files"),
            width=8,
            bad_above=1,
        ),
    ]


def rails():
    path = "host, peer, rail, transport"
    chosen = "{} and on (job, instance, peer, rail, transport) tensorlane_path_chosen == 1"
    return [
        graph(
            "Sent by rail and transport's class",
            "Payload that went out on each rail, by class, of all hosts. Good: rails of one speed carry the same.",
            "Bps",
            Query(f"sum by (rail, class) ({of_hosts(rate('tensorlane_rail_sent_bytes_total'))})", "rail {{rail}} {{class}}"),
            stacked=True,
        ),
        graph(
            "Flows by transport",
            "Flows that are up, by what carries them. Good: where every host has RDMA, none is on tcp.",
            "short",
            Query(f"sum by (transport, rail) (tensorlane_flows {HERE})", "{{transport}} rail {{rail}}"),
            stacked=True,
        ),
        graph(
            "Latency of paths in use",
            "One way, as measured when the transport was chosen; the slowest. Only paths with a choice are measured. Good: alike for hosts equally far.",
            "s",
            Query(most(f"sum by ({path}) ({of_hosts('(' + chosen.format('tensorlane_path_latency_seconds') + ')')})"), "{{host}} to {{peer}} {{transport}} rail {{rail}}"),
            links=[TO_HOST],
        ),
        graph(
            "Bandwidth of paths in use",
            "As measured when the transport was chosen; the narrowest. Good: near the speed of the link, and alike for like links.",
            "bps",
            Query(
                f"bottomk(15, sum by ({path}) ({of_hosts('(' + chosen.format('tensorlane_path_bandwidth_bits_per_second') + ')')}))",
                "{{host}} to {{peer}} {{transport}} rail {{rail}}",
            ),
            links=[TO_HOST],
        ),
    ]


def waiting():
    wait = "tensorlane_queue_wait_seconds"
    worst = quantile(0.99, wait, "class", of_hosts, "")
    order = order_of_service()
    return [
        graph(
            "Queue wait, half of the operations",
            "From when an operation could go to when it was given to the transport, by class, of all hosts. Good: the more urgent a class, the lower its line.",
            "s",
            Query(quantile(0.5, wait, "class", of_hosts), "{{class}} p50"),
            width=8, logarithmic=True,
        ),
        graph(
            "Queue wait, the slowest in a hundred",
            "The same for the 99th percentile, where classes part. Good: the line of the most urgent class stays far below the others, also while they rise.",
            "s",
            Query(quantile(0.99, wait, "class", of_hosts), "{{class}} p99"),
            width=8, logarithmic=True,
        ),
        graph(
            "What urgency gains",
            "The 99th percentile of the wait in the data class that is served last over that in the class that is served first. "
            "Good: well above 1 while both send; at 1 or below, urgent traffic does not overtake on the hosts.",
            "x",
            Query(f"sum({worst} > 0 and on (class) topk(1, {order})) / sum({worst} > 0 and on (class) bottomk(1, {order}))", "last over first"),
            width=8,
        ),
    ]


def device_events(names):
    """What RDMA devices count under names with one of these words in them."""
    counted = rate("tensorlane_rdma_device_events_total", f'counter=~".*({names}).*"')
    return f"sum by (host, device, counter) ({of_hosts(counted)})"


def nics():
    """Of node_exporter's collectors ethtool (off unless asked for), netdev and infiniband; the per-priority names are those of mlx5, bnxt_en and ice."""
    lines = "instance, device, priority"
    here = 'instance=~"$node"'
    pause = NIC + "{0}_(prio{{0}}_pause|pfc_ena_frames_pri{{0}}|priority_{{0}}_xoff_nic)"
    drops = " or ".join(by_priority(f"{NIC}received_prio{{}}_{kind}_discard", more=more) for kind, more in (("buf", "buffer"), ("cong", "congestion")))
    ports = {
        "node_network_receive_drop_total": "kernel, in", "node_network_transmit_drop_total": "kernel, out",
        NIC + "received_discards_phy": "port, in", NIC + "transmitted_discards_phy": "port, out",
        "node_infiniband_port_discards_received_total": "InfiniBand, in", "node_infiniband_port_discards_transmitted_total": "InfiniBand, out",
    }
    return [
        graph(
            "Pause received",
            "PFC frames by which a switch stopped a NIC, by priority; the most. Good: short bursts on lossless priorities, none on others.",
            "pps",
            Query(most(f"sum by ({lines}) ({by_priority(pause.format('received'))})"), "{{instance}} {{device}} priority {{priority}}"),
        ),
        graph(
            "Pause sent",
            "PFC frames by which a NIC stopped its switch, and warnings of a storm (mlx5); the most. Good: near 0; a host that keeps sending them is slow to receive.",
            "pps",
            Query(most(f"sum by ({lines}) ({by_priority(pause.format('transmitted'))})"), "{{instance}} {{device}} priority {{priority}}"),
            Query(most(rate(NIC + "transmitted_pause_storm_warning_events", here)), "{{instance}} {{device}} storm"),
        ),
        graph(
            "Time paused",
            "Share of the time for which a priority might not send (mlx5 counts microseconds); the most. Good: below 1%.",
            "percentunit",
            Query(most(f"sum by ({lines}) ({by_priority(NIC + 'received_prio{}_pause_duration')} / 1e6)"), "{{instance}} {{device}} priority {{priority}}"),
        ),
        graph(
            "ECN marks and congestion notifications",
            "Marked packets that arrived, and what RDMA devices did about them: CNPs sent and handled; the most. "
            "Good: some under load, when ECN answers before pause does; a steady flood is a crowded port.",
            "pps",
            Query(most(rate(NIC + "received_ecn_mark", here)), "{{instance}} {{device}} marked"),
            Query(most(f"sum by ({lines}) ({by_priority(NIC + 'received_prio{}_marked')})"), "{{instance}} {{device}} priority {{priority}} marked by the NIC"),
            Query(most(device_events("cnp|ecn_marked")), "{{host}} {{device}} {{counter}}"),
        ),
        graph(
            "Drops",
            "Packets that a NIC or kernel dropped, by priority where the NIC counts so (mlx5); the most. Good: 0 on lossless priorities; others recover, slowly.",
            "pps",
            Query(most(f"sum by ({lines}, where) ({drops})"), "{{instance}} {{device}} priority {{priority}} {{where}}"),
            *[Query(most(rate(name, here), 5), f"{{{{instance}}}} {{{{device}}}} {says}") for name, says in ports.items()],
        ),
        graph(
            "RDMA repairs and links that went down",
            "Retries, time-outs and gaps that RDMA devices counted, and links that failed; the most. Good: 0; anything that keeps rising is loss.",
            "ops",
            Query(most(device_events("seq|rnr|retry|timeout")), "{{host}} {{device}} {{counter}}"),
            Query(most(rate("node_infiniband_link_downed_total", here)), "{{instance}} {{device}} down"),
        ),
    ]


def build():
    return board(
        "fabric", "fabric", "The network as daemons and NICs see it: tags, paths, waiting, pause and loss.",
        [hosts(), classes(), choice("node", "NICs of (node_exporter)", "node_network_up", "instance")],
        {"Tags": tags(), "Rails and paths": rails(), "Urgent against bulk": waiting(), "NICs": nics()},
    )
