"""One host's daemon: what it costs, what it waits for, what it holds and whom it refused."""

from panels import Query, board, choice, classes, graph, link_to, most, numbers, of_hosts, quantile, rate, table

HOST = 'host="$host"'
IN_CLASS = 'class=~"$class"'
TO_JOB_OF_ROW = link_to("job", "This job", job="${__data.fields.Job:percentencode}")


def mine(expr):
    return of_hosts(expr, HOST)


def total(metric, labels=""):
    return f"sum({mine(rate(metric, labels))})"


def now(metric):
    return f"sum({mine(metric)})"


def rates(**counters):
    """A query for each counter: rates(sends="tensorlane_..._total")."""
    return [Query(total(metric), legend.replace("_", " ")) for legend, metric in counters.items()]


def summary():
    return [
        numbers(
            "Since start", "How long the daemon has run. Good: since you last started it.", "s",
            Query(f"time() - {now('tensorlane_start_time_seconds')}", "runs"),
        ),
        numbers(
            "Work at hand", "Jobs and operations now. Good: operations come and go; they do not only grow.", "short",
            Query(now("tensorlane_jobs"), "jobs"), Query(now("tensorlane_pending_operations"), "operations"), Query(now("tensorlane_open_messages"), "messages"),
        ),
        table(
            "Its jobs", "Jobs with ranks on this host. Good: those that you put there.",
            {"training_job": ("Job", ""), "user": ("User", ""), "Value #A": ("Sends", "Bps")},
            Query(most(f"sum by (training_job, user) ({mine(rate('tensorlane_job_sent_bytes_total'))})", 50)),
            links=[("Job", TO_JOB_OF_ROW)], sort="Sends",
        ),
    ]


def cpu():
    return [
        graph(
            "CPU time", "In cores: the lanes' loops, the threads that sum and copy, and the whole daemon. Good: no lane at its whole core while others wait.", "cores",
            *rates(
                lanes="tensorlane_lane_cpu_seconds_total", sums_and_copies="tensorlane_work_cpu_seconds_total", all_of_the_daemon="tensorlane_cpu_seconds_total"
            ),
            width=8,
        ),
        graph(
            "CPU per slice", "Time of lanes and work for each slice sent. Good: flat; a rise without larger slices is waste.", "s",
            Query(
                f"({total('tensorlane_lane_cpu_seconds_total')} + {total('tensorlane_work_cpu_seconds_total')})"
                f" / clamp_min({total('tensorlane_sent_slices_total')}, 1)",
                "per slice",
            ),
            width=8,
        ),
        graph(
            "Turns and sleeps", "Turns of the lanes' loops, and times that a lane blocked. Good: it sleeps when idle; turns without sleeps are a lane at its limit.",
            "ops", *rates(turns="tensorlane_lane_turns_total", sleeps="tensorlane_lane_sleeps_total"), width=8,
        ),
    ]


def traffic():
    window = f"sum by (class) ({mine(rate('tensorlane_window_stalls_total', IN_CLASS))})"
    wait = [Query(quantile(q, "tensorlane_queue_wait_seconds", "class", mine), f"{{{{class}}}} p{round(q * 100)}") for q in (0.5, 0.99)]
    moved = [
        Query(f"sum by (class) ({mine(rate(f'tensorlane_{way}_bytes_total', IN_CLASS))})", f"{{{{class}}}} {way}") for way in ("sent", "received")
    ]
    oldest = Query(f"max by (class) ({mine('tensorlane_oldest_operation_age_seconds')})", "{{class}}")
    return [
        graph("Sent and received by class", "Payload by class and direction. Good: both directions alike in a ring.", "Bps", *moved),
        graph("Queue wait by class", "From when an operation could go to when it went. Good: the more urgent, the lower.", "s", *wait, logarithmic=True),
        graph(
            "Window stalls by class", "Times that a send waited because the window of its class was full. Good: few in urgent classes; bulk may wait.", "ops",
            Query(window, "{{class}}"), width=8,
        ),
        graph(
            "Oldest operation and message",
            "Age of the oldest operation of each class and of the oldest message that are not over. Good: below an iteration; a line that climbs is a standstill.",
            "s", oldest, Query(now("tensorlane_oldest_message_age_seconds"), "message"), width=8,
        ),
        graph(
            "Late ranks and repairs",
            "Ranks of this host reported late, flows that came back, frames sent again, frames against the protocol. Good: 0.", "ops",
            *rates(
                late_ranks="tensorlane_late_reports_total", resumed_flows="tensorlane_resumed_flows_total", resent_frames="tensorlane_resent_frames_total",
                protocol_errors="tensorlane_protocol_errors_total", stale_grants="tensorlane_stale_grants_total",
            ),
            width=8,
        ),
    ]


def holds():
    def by_user(what):
        return Query(most(f"sum by (user) ({mine('tensorlane_user_' + what)})", 5), f"user {{{{user}}}} {what}")

    return [
        graph(
            "Sessions", "Sessions of jobs now, those whose memory is held, and by user; the most. Good: they end with their jobs.", "short",
            Query(now("tensorlane_sessions"), "in jobs"), Query(now("tensorlane_open_sessions"), "held"), by_user("sessions"), width=8,
        ),
        graph(
            "Tensors, segments, descriptors", "What users hold, those with most, and segments that outlive their sessions. Good: far from the limits; no left-overs.",
            "short", by_user("tensors"), by_user("segments"), by_user("descriptors"), Query(now("tensorlane_leftover_segments"), "left-over segments"), width=8,
        ),
        graph(
            "Staging memory", "Staging memory in use. Good: below the limit of daemon.yaml, and not at one value for long.", "bytes",
            Query(now("tensorlane_staging_bytes"), "staging"), width=8,
        ),
    ]


def others():
    return [
        graph(
            "Control messages", "Messages to and from other daemons, and those that were of no use. Good: malformed and unsent are 0.", "ops",
            *rates(
                sent="tensorlane_control_sent_messages_total", received="tensorlane_control_received_messages_total",
                malformed="tensorlane_control_malformed_messages_total", stale="tensorlane_control_stale_messages_total",
                unsent="tensorlane_control_unsent_messages_total",
            ),
        ),
        graph(
            "Connections accepted and refused",
            "Connections to the data ports, and whom the daemon turned away: there, at the control port, by secret and by session. Good: nobody is refused.",
            "ops",
            *rates(
                accepted="tensorlane_accepted_connections_total", refused="tensorlane_refused_connections_total", silent="tensorlane_silent_connections_total",
                unknown_daemons="tensorlane_control_refused_connections_total", unproven="tensorlane_control_unproven_connections_total",
                wrong_secrets="tensorlane_refused_secrets_total", sessions="tensorlane_refused_sessions_total",
            ),
        ),
    ]


def build():
    return board(
        "host", "host", "One host's daemon: CPU, waiting, memory, and whom it speaks to.",
        [choice("host", "Host", "tensorlane_host_info", "host", several=False), classes()],
        {"Now": summary(), "CPU": cpu(), "Traffic": traffic(), "What it holds": holds(), "Others": others()},
    )
