// The columns of all views: which there are, what they mean, and which go first where there is no room.
#include "monitor/top/picture.h"

namespace tensorlane::top {
namespace {

std::vector<Column> job_columns() {
  return {
      {"job", "JOB", Unit::kText, 100, "its name"},
      {"state", "STATE", Unit::kText, 75, "gathering, running, failed ..."},
      {"iteration_s", "ITER", Unit::kSeconds, 95, "time of an iteration"},
      {"exposed_share", "EXPOSED", Unit::kShare, 85,
       "share of the time in which even the rank that waits least waits for tensors; not known (-) where streams wait "
       "on a GPU",
       0.3},
      {"sent_bits_per_second", "SENT b/s", Unit::kBitsPerSecond, 90, "bits that this host sends in a second"},
      {"received_bits_per_second", "RECV b/s", Unit::kBitsPerSecond, 60, "bits that it receives in a second"},
      {"hosts", "HOSTS", Unit::kNumber, 55, "hosts that take part"},
      {"ranks", "RANKS", Unit::kNumber, 50, "ranks on them"},
      {"tensors", "TENSORS", Unit::kNumber, 20, "tensors of its plan"},
      {"user", "USER", Unit::kText, 30, "number of the user whose job it is"},
      {"leader", "LEADER", Unit::kText, 25, "host that leads it"},
      {"remark", "REMARK", Unit::kText, 70, "whom it waits for, what is late, why it has failed",
       std::numeric_limits<double>::infinity(), 20},
      {"id", "ID", Unit::kText, 10, "its number"}};
}

std::vector<Column> class_columns() {
  return {
      {"class", "CLASS", Unit::kText, 100, "traffic class, the most urgent first"},
      {"sent_bits_per_second", "SENT b/s", Unit::kBitsPerSecond, 90, "bits sent in a second"},
      {"received_bits_per_second", "RECV b/s", Unit::kBitsPerSecond, 80, "bits received in a second"},
      {"queue_s", "QUEUE", Unit::kSeconds, 85, "mean wait of what may be sent until it is given to the network"},
      {"completion_s", "DONE IN", Unit::kSeconds, 70, "mean time of an operation until it is complete"},
      {"demoted_bits_per_second", "DEMOTED", Unit::kBitsPerSecond, 75,
       "bits that a limit of the host put into a lower class", 1},
      {"stalls_per_second", "STALLS", Unit::kPerSecond, 60, "times that the window was full, in a second, of all jobs"},
      {"operations_per_second", "OPS", Unit::kPerSecond, 50, "operations completed in a second"},
      {"window_bytes", "WINDOW", Unit::kBytes, 30, "bytes that may be on their way"},
      {"dscp", "DSCP", Unit::kNumber, 40, "with which its packets are to be tagged"},
      {"limit_bits_per_second", "LIMIT", Unit::kBitsPerSecond, 20, "of a job on a host, in bits per second"}};
}

std::vector<Column> host_columns() {
  return {
      {"host", "HOST", Unit::kText, 100, "its name in the fabric file"},
      {"sent_bits_per_second", "SENT b/s", Unit::kBitsPerSecond, 90, "bits sent in a second"},
      {"received_bits_per_second", "RECV b/s", Unit::kBitsPerSecond, 80, "bits received in a second"},
      {"lane_cpu_share", "LANES", Unit::kShare, 85, "share of the time that the daemon's lanes run, of all lanes", 0.9},
      {"lane_no_cpu_share", "NO CPU", Unit::kShare, 70, "share in which they wait for a CPU", 0.1},
      {"blocked_share", "BLOCKED", Unit::kShare, 75,
       "share in which its ranks wait for tensors, in the mean; not known (-) where streams wait on a GPU"},
      {"stalls_per_second", "STALLS", Unit::kPerSecond, 60, "times that a window was full, in a second"},
      {"iterations_per_second", "ITER/s", Unit::kPerSecond, 40, "iterations in a second"},
      {"staging_share", "STAGING", Unit::kShare, 45, "share of the staging that is in use", 0.9},
      {"ranks", "RANKS", Unit::kNumber, 35, "ranks of the job on it"},
      {"cpus", "CPUS", Unit::kNumber, 20, "processors that it has"},
      {"jobs", "JOBS", Unit::kNumber, 50, "jobs that it tells this host of"},
      {"uptime_s", "UP", Unit::kSeconds, 30, "how long its daemon runs"},
      {"version", "VERSION", Unit::kText, 25, "release of its daemon"}};
}

std::vector<Column> peer_columns() {
  return {{"peer", "PEER", Unit::kText, 100, "host at the other end of a connection"},
          {"host", "HOST", Unit::kText, 85, "host at this end"},
          {"class", "CLASS", Unit::kText, 80, "traffic class"},
          {"rtt_s", "RTT", Unit::kSeconds, 95, "round trip, smoothed by the kernel"},
          {"min_rtt_s", "MIN RTT", Unit::kSeconds, 60, "the shortest one lately"},
          {"resent_share", "RESENT", Unit::kShare, 90, "share of the segments that were sent again", 0.001},
          {"acked_bits_per_second", "ACKED b/s", Unit::kBitsPerSecond, 70, "bits acknowledged in a second"},
          {"busy_share", "BUSY", Unit::kShare, 40, "share of the time in which something was to be sent"}};
}

std::vector<Column> rail_columns() {
  return {{"nic", "NIC", Unit::kText, 100, "network interface"},
          {"host", "HOST", Unit::kText, 90, "its host"},
          {"use", "USE", Unit::kShare, 95,
           "of the link's speed in the fabric file, in the fuller direction: by OUT and IN, or by SENT and RECV where "
           "RDMA or "
           "DPDK passes by the kernel's counts",
           0.9},
          {"nic_sent_bits_per_second", "OUT b/s", Unit::kBitsPerSecond, 80,
           "bits that the NIC sends in a second, whoever's"},
          {"nic_received_bits_per_second", "IN b/s", Unit::kBitsPerSecond, 75, "bits that it receives"},
          {"link_bits_per_second", "LINK b/s", Unit::kBitsPerSecond, 70, "speed of the link in the fabric file"},
          {"sent_bits_per_second", "SENT b/s", Unit::kBitsPerSecond, 60,
           "payload that the daemon sends, in bits per second"},
          {"received_bits_per_second", "RECV b/s", Unit::kBitsPerSecond, 50, "payload that it receives"}};
}

std::vector<Column> rank_columns() {
  return {
      {"rank", "RANK", Unit::kNumber, 100, "its number"},
      {"host", "HOST", Unit::kText, 90, "its host"},
      {"lag_s", "LAG", Unit::kSeconds, 95, "how much later than the first rank it submits an operation, in the mean"},
      {"blocked_share", "BLOCKED", Unit::kShare, 85,
       "share of the time in which it waits for tensors; not known (-) where streams wait on a GPU"},
      {"computing_s", "COMPUTE", Unit::kSeconds, 80, "time of an iteration in which it does not"},
      {"wait_s", "WAIT", Unit::kSeconds, 60, "mean time of an operation from its submission on"},
      {"cpu_share", "CPU", Unit::kShare, 70, "share in which the thread that waits runs"},
      {"no_cpu_share", "NO CPU", Unit::kShare, 65, "share in which it waits for a CPU", 0.1},
      {"operations_per_second", "OPS", Unit::kPerSecond, 40, "operations in a second"}};
}

}  // namespace

Table empty_table(View view) {
  switch (view) {
    case View::kJobs:
      return {job_columns(), {}};
    case View::kClasses:
      return {class_columns(), {}};
    case View::kHosts:
      return {host_columns(), {}};
    case View::kPeers:
      return {peer_columns(), {}};
    case View::kRails:
      return {rail_columns(), {}};
    case View::kRanks:
      break;
  }
  return {rank_columns(), {}};
}

}  // namespace tensorlane::top
