"""The fleet: which daemons are up, what they move, and what has failed."""

from panels import Query, board, classes, graph, hosts, link_to, most, numbers, of_hosts, rate, table

TO_HOST = link_to("host", "This host", host="${__field.labels.host}")
TO_HOST_OF_ROW = link_to("host", "This host", host="${__data.fields.Host}")
TO_JOB = link_to("job", "This job", job="${__field.labels.training_job}")
TO_JOB_OF_ROW = link_to("job", "This job", job="${__data.fields.Job:percentencode}")
JOBS = "tensorlane_job_sent_bytes_total"


def by_host(metric, labels=""):
    return most(f"sum by (host) ({of_hosts(rate(metric, labels))})")


def daemons():
    gone = "up == 0 and on (job, instance) last_over_time(tensorlane_host_info[1d])"
    jobs_now, sessions = (of_hosts(f"tensorlane_{what}") for what in ("jobs", "sessions"))
    return [
        numbers(
            "Up and down",
            "Daemons that answer, and those that answered within a day and do not now. Good: all hosts are up and none is down.",
            "short",
            Query('count(tensorlane_host_info{host=~"$host"})', "up"),
            Query(f"count({gone}) or vector(0)", "down"),
        ),
        numbers(
            "Jobs and sessions",
            "Jobs with ranks on these hosts, and their processes. Good: as many as you started.",
            "short",
            Query(f"count(count by (training_job, user) ({of_hosts(JOBS)})) or vector(0)", "jobs"),
            Query(f"sum({sessions})", "sessions"),
        ),
        numbers(
            "Failed in this time",
            "Jobs and operations on tensors that failed on any of these hosts in the time shown. A job counts once on each host. Good: 0.",
            "short",
            Query(f"sum({of_hosts('increase(tensorlane_jobs_failed_total[$__range])')})", "jobs"),
            Query(f"sum({of_hosts('increase(tensorlane_failed_tensors_total[$__range])')})", "operations"),
            bad_above=1,
        ),
        table(
            "Versions",
            "Daemons by their version. Good: one version, except while you update.",
            {"version": ("Version", ""), "Value #A": ("Daemons", "")},
            Query('count by (version) (tensorlane_build_info and on (job, instance) tensorlane_host_info{host=~"$host"})'),
            width=6,
        ),
        table(
            "Hosts",
            "One row for each daemon that answers. Good: the same version everywhere, and no host that began anew without your doing.",
            {
                "host": ("Host", ""), "version": ("Version", ""), "Value #A": ("Since start", "s"), "Value #B": ("Jobs", ""),
                "Value #C": ("Sessions", ""), "Value #D": ("Sends", "Bps"),
            },
            Query(f"time() - sum by (host, version) ({of_hosts('tensorlane_start_time_seconds * on (job, instance) group_left (version) tensorlane_build_info')})"),
            Query(f"sum by (host) ({jobs_now})"),
            Query(f"sum by (host) ({sessions})"),
            Query(f"sum by (host) ({of_hosts(rate('tensorlane_sent_bytes_total'))})"),
            links=[("Host", TO_HOST_OF_ROW)],
            sort="Sends",
        ),
        jobs(),
    ]


def jobs():
    sent = f"sum by (training_job, user) ({of_hosts(rate(JOBS))})"
    shown = most(sent, 50)
    return table(
        "Jobs",
        "The 50 jobs that send most, with the hosts they are on. Good: every job moves, and what is demoted is a small part of what is sent.",
        {
            "training_job": ("Job", ""), "user": ("User", ""), "Value #A": ("Sends", "Bps"), "Value #B": ("Demoted", "Bps"), "Value #C": ("Hosts", ""),
        },
        Query(shown),
        Query(f"sum by (training_job, user) ({of_hosts(rate('tensorlane_job_demoted_bytes_total'))}) and {shown}"),
        Query(f"count by (training_job, user) (count by (training_job, user, job, instance) ({of_hosts(JOBS)})) and {shown}"),
        links=[("Job", TO_JOB_OF_ROW)],
        sort="Sends",
    )


def traffic():
    by_class = 'class=~"$class"'
    return [
        graph(
            "Sent by class",
            "Payload of all hosts that went out, by its class. Good: each class carries what you expect of it, without holes while jobs run.",
            "Bps",
            Query(f"sum by (class) ({of_hosts(rate('tensorlane_sent_bytes_total', by_class))})", "{{class}}"),
            stacked=True,
        ),
        graph(
            "Demoted share by job",
            "Of each job's bytes, those that went in a lower class because the job's limit was used up; the largest. Good: 0, or below what you grant.",
            "percentunit",
            Query(
                most(
                    f"sum by (training_job) ({of_hosts(rate('tensorlane_job_demoted_bytes_total'))})"
                    f" / clamp_min(sum by (training_job) ({of_hosts(rate(JOBS))}), 1)"
                ),
                "{{training_job}}",
            ),
            links=[TO_JOB],
        ),
    ]


def failures():
    causes = {"gathering": "not all ranks came", "connecting": "a host did not get ready"}
    count = "increase(tensorlane_jobs_failed{}_total[$__rate_interval])"
    queries = [Query(f"sum({of_hosts(count.format('_' + cause))})", says) for cause, says in causes.items()]
    others = " - on (job, instance) ".join(count.format(part) for part in ("", "_gathering", "_connecting"))
    queries.append(Query(f"sum({of_hosts('(' + others + ')')})", "while they ran"))
    return [
        graph("Failed jobs", "Jobs that failed, by when: a job counts once on each host. Good: 0.", "short", *queries, stacked=True),
        graph(
            "Failed operations by class",
            "Operations on tensors that failed, on all hosts. Good: 0.",
            "ops",
            Query(f"sum by (class) ({of_hosts(rate('tensorlane_failed_tensors_total'))})", "{{class}}"),
        ),
        graph(
            "Late ranks by host",
            "Times that a rank of a host was reported late, for the hosts with most. Good: 0; one host that stays on top has a slow process or device.",
            "ops",
            Query(by_host("tensorlane_late_reports_total"), "{{host}}"),
            links=[TO_HOST],
        ),
        graph(
            "Standstill by host",
            "Reports of flows and lanes that stand still, for the hosts with most. Good: 0; anything else is a network or a daemon that does not move.",
            "ops",
            Query(by_host("tensorlane_standstill_reports_total"), "{{host}}"),
            links=[TO_HOST],
        ),
    ]


def cost():
    return [
        graph(
            "CPU by host",
            "CPU time of the daemons in cores, for those with most. Good: hosts with the same work are alike, and no more than lanes plus workers.",
            "cores",
            Query(by_host("tensorlane_cpu_seconds_total"), "{{host}}"),
            links=[TO_HOST],
        ),
        graph(
            "Starts by host",
            "Times that a daemon began anew within 15 minutes, for the hosts with most. Good: 0, except while you update.",
            "short",
            Query(most(f"sum by (host) ({of_hosts('changes(tensorlane_start_time_seconds[15m])')})"), "{{host}}"),
            links=[TO_HOST],
        ),
    ]


def build():
    return board(
        "fleet", "fleet", "All daemons: up or down, versions, jobs, bytes, failures.", [hosts(), classes()],
        {"Daemons": daemons(), "Traffic": traffic(), "Failures": failures(), "Cost": cost()},
    )
