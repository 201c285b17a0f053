// daemon.yaml: what one daemon is told about itself. Everything about the network is in the fabric file that it names.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/token_bucket.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"
#include "common/protocol/plan.h"

namespace tensorlane::config {

inline constexpr std::uint32_t kMaxWorkers = 64, kMaxLanes = 16;

struct DaemonConfig {
  std::string path;
  std::map<std::string, std::string> written;  // keys of the file and what stands there, as YAML
  std::map<std::string, std::string> places;   // keys of the file and where each stands: "daemon.yaml:4"
  std::string fabric_path;                     // resolved against the file's folder
  fabric::Fabric fabric;
  std::string host;             // this host in the fabric
  std::string secret_key;       // CURVE, Z85; read from secret_key_file, which others must not be able to read
  std::string secret_key_path;  // resolved against the file's folder; empty where the file names none
  std::string socket = "/run/tensorlane/tensorlaned.sock";
  enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError } log_level = LogLevel::kInfo;
  std::string metrics;               // ADDRESS:PORT; empty: off
  std::string timeline;              // path; empty: off
  Bytes timeline_limit = mib(1024);  // of this file, and of the one before it
  Bytes spans = mib(8);              // the last spans in memory, of all lanes; 0: none
  // Folder for the last spans of jobs that fail; resolved against the file's. Empty: off; none: what the service
  // manager has for the daemon's state.
  std::optional<std::string> spans_on_failure;
  std::string record;                  // folder for the logs of engines; resolved against the file's; empty: off
  Bytes record_limit = mib(1024);      // of each of them
  Duration probe_marks = seconds(60);  // how often another host's data ports are probed; 0: never
  Duration detection = seconds(10);    // how soon a dead host or client is found
  // When the connection of a flow is lost while both hosts live: go on over a new one, for up to the job's detection
  // time, or end the job. The same on all hosts.
  enum class OnLostFlow : std::uint8_t { kResume, kAbort } on_lost_flow = OnLostFlow::kAbort;
  Duration join_timeout = seconds(60);
  Duration late_after = seconds(10);                                    // a rank that keeps others waiting is reported
  Duration late_error = seconds(300);                                   // ... and ends the job
  std::optional<protocol::Pattern> pattern = protocol::Pattern::kRing;  // none: by the cost model, for each tensor
  // What the cost model reckons with; the leader's counts.
  struct NetworkModel {
    Duration latency = microseconds(50);     // from engine to engine
    std::optional<BitsPerSecond> bandwidth;  // of a host; unset: its link's in the fabric file, else 10 Gbit/s
    Duration message_cost = microseconds(5);
    std::uint64_t incast_percent = 0;        // PatternCosts::incast of engine/pattern/selector.h
    BitsPerSecond sum_rate{40'000'000'000};  // of what is read to be added
  } network_model;
  // Of jobs that this host leads: how long a batch of small allreduces may be; 0: there are none. Or by the cost model.
  Bytes batch;
  bool batch_automatic = false;
  // Of jobs that this host leads; ordering_concurrent: how many at once, for `concurrent`.
  protocol::Ordering ordering = protocol::Ordering::kTagged;
  std::uint32_t ordering_concurrent = 2;
  enum class Transport : std::uint8_t { kTcp, kRdma, kDpdk, kAuto } transport = Transport::kAuto;
  struct Rdma {
    std::string device;  // empty: the one that has this host's rdma address of the fabric
    std::uint8_t port = 1;
    int gid_index = -1;            // negative: by the address
    std::uint8_t queue_pairs = 1;  // of each flow; the same on all hosts
    bool connect_by_cm = false;    // else by plain verbs; the same on all hosts
    Duration retry{};              // how long they send again before they are lost; 0: longer than `detection`
  } rdma;
  struct Dpdk {
    // By rail. Devices: a PCI address, or a virtual device as "net_af_packet0,iface=eth1". Networks and gateways may be
    // left out: then every host is on the link.
    std::vector<std::string> devices, networks, gateways;
    std::vector<std::string> eal;         // arguments; empty: without huge pages and PCI where nothing asks for them
    std::vector<std::string> neighbours;  // "ADDRESS MAC": not asked for on the link
    std::uint16_t port = 7109;            // UDP; the same on all hosts
    int vlan = -1;                        // of frames; 0: priority tags; negative: no tag
  } dpdk;
  bool priorities = true;          // false: one class, order of arrival
  bool search_thresholds = false;  // jobs led from here search for the thresholds between classes; else the fabric's
  bool observe_order = false;      // urgency is the order in which ranks wait; else what tensors are registered with
  bool tags = true;                // false: flows carry DSCP 0 whatever their class
  bool payload_crc = false;
  std::vector<std::uint32_t> users;   // uids that may use this daemon, beside its own and root
  Bytes arena_limit = mib(16384);     // shared memory of one session
  Bytes memory_limit = mib(65536);    // ... of all sessions, with what the daemon needs for their jobs
  Bytes memory_keep_free = mib(256);  // of the host's memory, for everybody else
  std::uint32_t max_sessions = 256;
  std::uint32_t max_pending = 64;       // connections that have not said hello
  std::uint32_t max_tensors = 1 << 20;  // that all sessions have registered
  std::uint32_t users_guaranteed = 50;  // percent of every limit that users have for sure, evenly (shares.h)
  Bytes staging = mib(64);
  // What one job may send from this host in a class, by ClassId; the rest of it travels in the next class. From
  // job_limits: [{class: urgent, rate: 2 Gbit/s, burst: 16 MiB}]; no burst: what the rate brings in 100 ms.
  std::array<RateLimit, kMaxDataClasses> job_limits{};
  std::optional<BitsPerSecond> control_rate;  // of grants and announcements of all jobs; unset: 5 % of the host's link
  std::uint32_t slice_elements = 0;           // 0: from the link speed
  Duration spin = microseconds(-1);           // negative: by the number of cores
  int cpu = -1;
  std::uint32_t lanes = 1;    // threads that drive transfers; rail i belongs to lane i % lanes
  std::uint32_t workers = 0;  // threads that sum and copy beside the lanes; 0: the lanes do it

  const fabric::Host& self() const { return *fabric.find_host(host); }
  // For messages: FILE:LINE of a key, or the file where the key was left out.
  const std::string& place(const std::string& key) const {
    const auto found = places.find(key);
    return found == places.end() ? path : found->second;
  }
  // The data classes in use: all of the fabric file's, or one without priorities.
  std::uint8_t data_classes() const {
    return priorities ? static_cast<std::uint8_t>(fabric.classes.data.size()) : std::uint8_t{1};
  }
  fabric::ClassTable classes_in_use() const {
    fabric::ClassTable classes = fabric.classes;
    classes.data.resize(data_classes());
    return classes;
  }
};

// Reads daemon.yaml and the fabric file that it names. Errors: kInvalidArgument with FILE:LINE and what was expected,
// as fabric::load.
Result<DaemonConfig> load(const std::string& path);

// As daemon.yaml has it: "dpdk".
inline constexpr std::array<std::string_view, 4> kTransportNames{"tcp", "rdma", "dpdk", "auto"};
constexpr std::string_view transport_name(DaemonConfig::Transport transport) {
  return kTransportNames[static_cast<std::size_t>(transport)];
}

}  // namespace tensorlane::config
