"""One job: what it moves in which class, how long its operations take, and whom it waits for."""

from panels import Query, asked_for, board, choice, classes, graph, link_to, most, numbers, of_hosts, of_job, quantile, rate, table

MINE = 'training_job="$job"'
MINE_IN = f'{MINE}, class=~"$class"'
SENT, RECEIVED, MET, DEMOTED = (f"tensorlane_job_{what}_bytes_total" for what in ("sent", "received", "met", "demoted"))
SHARED = "Daemons count this by class, not by job: other jobs on the same hosts are in it."
TO_HOST = link_to("host", "This host", host="${__field.labels.host}")
TO_HOST_OF_ROW = link_to("host", "This host", host="${__data.fields.Host}")
ANY = 'host=~".+"'


def per_host(expr, how="sum"):
    return f"{how} by (host) ({of_hosts('(' + expr + ')', ANY)})"


def summary():
    share = f"sum({rate(DEMOTED, MINE)}) / clamp_min(sum({rate(SENT, MINE)}), 1)"
    return [
        numbers(
            "Hosts and flows",
            "Hosts where the job has ranks, and its flows that are up on them. Good: as many hosts as you gave it.",
            "short",
            Query(f"count(count by (job, instance) ({SENT}{{{MINE}}}))", "hosts"),
            Query(f"count(tensorlane_flow_dscp{{{MINE}}}) or vector(0)", "flows"),
        ),
        numbers(
            "Rate", "Payload that the job sends and receives, all hosts together. Good: steady from one iteration to the next.", "Bps",
            Query(f"sum({rate(SENT, MINE)})", "sends"), Query(f"sum({rate(RECEIVED, MINE)})", "receives"),
        ),
        numbers(
            "Demoted share", "Of the job's bytes, those that went in a lower class than their own. Good: 0, or below what you grant.", "percentunit",
            Query(share, "demoted"), bad_above=0.1,
        ),
        numbers(
            "Late in this time", f"Times that a rank of these hosts was reported late in the time shown. {SHARED} Good: 0.", "short",
            Query(f"sum({of_job('increase(tensorlane_late_reports_total[$__range])')})", "late ranks"), bad_above=1,
        ),
    ]


def where():
    lines = "class, rail, asked_{0}"
    flows = "count_values by ({1}) (\"{0}\", {2})"
    tags = [
        flows.format(name, lines.format(name), asked_for(f"tensorlane_flow_{name}{{{MINE_IN}}}", f"asked_{name}")) for name in ("dscp", "pcp")
    ]
    return [
        table(
            "Its hosts",
            "Each host of the job, with what it sends and receives for it, its late ranks in the time shown and its oldest operation. "
            "Good: hosts are alike; the one with late ranks is where to look.",
            {
                "host": ("Host", ""), "Value #A": ("Sends", "Bps"), "Value #B": ("Receives", "Bps"), "Value #C": ("Late ranks", ""),
                "Value #D": ("Oldest operation", "s"),
            },
            Query(per_host(rate(SENT, MINE))),
            Query(per_host(rate(RECEIVED, MINE))),
            Query(per_host(of_job("increase(tensorlane_late_reports_total[$__range])"))),
            Query(per_host(of_job("tensorlane_oldest_operation_age_seconds"), "max")),
            links=[("Host", TO_HOST_OF_ROW)],
            sort="Late ranks",
        ),
        *[
            table(
                f"Flows by {title}",
                f"The job's flows, by the {title} that their sockets answer beside the one that the fabric file asks for; -1 is unknown. Good: the two are equal.",
                {"class": ("Class", ""), "rail": ("Rail", ""), f"asked_{name}": ("Asked", ""), name: ("In force", ""), "Value #A": ("Flows", "")},
                Query(tag),
                width=6,
            )
            for name, title, tag in zip(("dscp", "pcp"), ("DSCP", "PCP"), tags)
        ],
    ]


def traffic():
    return [
        graph(
            "Sent by class", "Payload of the job by the class that it went in. Good: no holes while it runs, and little that is urgent.", "Bps",
            Query(f"sum by (class) ({rate(SENT, MINE_IN)})", "{{class}}"), width=8, stacked=True,
        ),
        graph(
            "Received by class", "Payload that came for the job, by class. Good: as much as is sent, all hosts together.", "Bps",
            Query(f"sum by (class) ({rate(RECEIVED, MINE_IN)})", "{{class}}"), width=8, stacked=True,
        ),
        graph(
            "Shares by class",
            "Demoted: of what belongs to a class, the part that went in a lower one because the job's limit was used up. Good: 0, or below what you grant. Met bulk: of "
            "what goes in a class, the part that went while a less urgent class had something to send on the same NIC, whosever that is: what the order inside hosts acts "
            "on. What meets in switches, and what is on its way already, is not in it.",
            "percentunit",
            Query(
                f"sum by (class) ({rate(DEMOTED, MINE_IN)}) / clamp_min(sum by (class) ({rate(DEMOTED, MINE_IN)}) + sum by (class) ({rate(SENT, MINE_IN)}), 1)",
                "{{class}} demoted",
            ),
            Query(f"sum by (class) ({rate(MET, MINE_IN)}) / clamp_min(sum by (class) ({rate(SENT, MINE_IN)}), 1)", "{{class}} met bulk"),
            width=8,
        ),
    ]


def times():
    def two(title, says, metric):
        return graph(
            title, f"{says} {SHARED}", "s",
            *[Query(quantile(q, metric, "class", of_job), f"{{{{class}}}} p{round(q * 100)}") for q in (0.5, 0.99)],
            logarithmic=True, width=8,
        )

    return [
        two(
            "Completion by class",
            "From the last local rank's submission to completion, half of the tensors and the slowest in a hundred. Good: flat, and the two not far apart.",
            "tensorlane_completion_seconds",
        ),
        two(
            "Queue wait by class",
            "From when an operation could go to when it went. Good: the more urgent a class, the lower.",
            "tensorlane_queue_wait_seconds",
        ),
        graph(
            "Oldest operation by host",
            f"Age of the oldest operation that is not complete; the hosts with the oldest. {SHARED} Good: below an iteration; a line that climbs is a standstill.",
            "s",
            Query(most(per_host(of_job("tensorlane_oldest_operation_age_seconds"), "max"), 10), "{{host}}"),
            links=[TO_HOST], width=8,
        ),
    ]


def ranks():
    def by_rank(metric):
        return f"max by (training_rank, host) ({rate(metric, MINE)})"

    rank = "rank {{training_rank}} on {{host}}"
    iterations = f"(max({rate('tensorlane_job_iterations_total', MINE)}) > 0)"
    waits = f"{by_rank('tensorlane_job_rank_wait_seconds_total')} / ({by_rank('tensorlane_job_rank_operations_total')} > 0)"
    blocked = by_rank("tensorlane_job_rank_blocked_seconds_total")
    return [
        graph(
            "Iteration",
            "How long an iteration takes, and for how much of it even the rank that waits least stands in the library: a faster network could save no more (not known where streams of a GPU wait). "
            "Good: flat, and the second far below the first.",
            "s",
            Query(f"{iterations} ^ -1", "iteration"), Query(f"{iterations} ^ -1 * min({blocked})", "of it, exposed"), width=8,
        ),
        graph(
            "Lag of ranks",
            "How much later than the first rank a rank submits an operation, in the mean; the latest. Good: small beside an iteration; a rank that stays above the rest is the slow one.",
            "s",
            Query(most(f"max({waits}) - on () group_right () ({waits})", 10), rank), width=8, links=[TO_HOST],
        ),
        graph(
            "Blocked by rank",
            "The share of its time that a rank stands in the library's waits; the most blocked. Good: low and alike; a slow rank is blocked less than those that wait for it. Nothing is shown of ranks whose streams wait on a GPU.",
            "percentunit",
            Query(most(blocked, 10), rank), width=8, links=[TO_HOST],
        ),
    ]


def build():
    return board(
        "job", "job", "One training job: its bytes by class, its times, its hosts, its ranks.",
        [choice("job", "Job", SENT, "training_job", several=False), classes()],
        {"Now": summary(), "Where it runs": where(), "Ranks": ranks(), "Traffic": traffic(), "Times": times()},
    )
