// Several real control planes in one process, on 127.0.0.x, with lanes and session modules that only remember what they
// were told.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/fabric/fabric.h"
#include "daemon/control/control.h"

namespace tensorlane::control::testing {

struct KeyPair {
  std::string public_key, secret_key;
};
KeyPair make_keys();

// The id of a job that Cluster::request() asks for.
JobId job_id(const std::string& job);

// A session module: what each session was told, and waiting for it.
class Sessions final : public ports::SessionEvents {
 public:
  void joined(ports::SessionId session, Result<ports::JoinInfo> info) override;
  void registered(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) override;
  void unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) override;
  void job_failed(ports::SessionId session, Status cause) override;
  void left(ports::SessionId session) override;
  void status(ports::SessionId session, std::uint32_t request, std::string json) override;

  // Each waits up to `patience` and gives what has come, if anything.
  std::optional<Result<ports::JoinInfo>> wait_joined(std::uint64_t session, double patience = 10);
  std::optional<Result<std::vector<TensorId>>> wait_registered(std::uint64_t session, std::uint32_t request,
                                                               double patience = 10);
  std::optional<Result<std::uint32_t>> wait_unregistered(std::uint64_t session, std::uint32_t request,
                                                         double patience = 10);
  std::optional<Status> wait_failed(std::uint64_t session, double patience = 10);
  bool wait_left(std::uint64_t session, double patience = 10);
  std::optional<nlohmann::json> wait_status(std::uint64_t session, std::uint32_t request, double patience = 10);

  // From now on status() does not return for so long: what stops control's thread, as SIGSTOP stops a daemon.
  void block_status(std::chrono::milliseconds time) { block_ = time; }

 private:
  template <typename Map, typename Key>
  auto wait(const Map& map, const Key& key, double patience) -> std::optional<typename Map::mapped_type>;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::chrono::milliseconds> block_{std::chrono::milliseconds(0)};
  std::map<std::uint64_t, Result<ports::JoinInfo>> joined_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Result<std::vector<TensorId>>> registered_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Result<std::uint32_t>> unregistered_;
  std::map<std::uint64_t, Status> failed_;
  std::map<std::uint64_t, bool> left_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> status_;
};

// A lane that does at once whatever it is told, on the caller's thread, and remembers it.
class Lane final : public ports::LanePort {
 public:
  struct Binding {
    Rank rank;
    TensorId tensor;
    ports::BufferPlace place;
  };
  struct Awaited {
    TensorId tensor;
    Sequence sequence;
    Duration waited;
    bool operator==(const Awaited&) const = default;
  };
  struct JobRecord {
    ports::JobSpec spec;
    std::set<std::uint32_t> attached, detached, left;
    protocol::Plan plan;
    std::vector<Binding> bindings;
    std::optional<std::vector<double>> thresholds;
    std::vector<Awaited> awaited;
    std::optional<Status> aborted;
    bool closed = false;
  };

  Status start_job(ports::JobSpec spec) override;
  Status attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) override;
  Status apply_plan(JobId job, protocol::Plan added, std::function<void()> then) override;
  Status vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) override;
  Status bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) override;
  Status use_thresholds(JobId job, std::vector<double> thresholds) override;
  Status awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) override;
  Status rank_left(JobId job, Rank rank) override;
  Status abort_job(JobId job, Status cause) override;
  Status detach(JobId job, Rank rank) override;

  void set_listener(ports::LaneListener* listener) { listener_ = listener; }
  // Later starts are not answered by on_job_connected.
  void never_connect() { connects_ = false; }
  // The next so many calls of bind() find the queue full.
  void refuse_binds(int count) { refused_binds_ = count; }
  // The next vacate() is done when vacate_now() is called.
  void hold_vacate() { holds_vacate_ = true; }
  void vacate_now();
  // The latest job of this name.
  JobRecord record(const std::string& job) { return record(job_id(job)); }
  JobRecord record(JobId job);

 private:
  std::mutex mutex_;
  std::map<JobId, JobRecord> jobs_;
  ports::LaneListener* listener_ = nullptr;
  std::atomic<bool> connects_{true};
  std::atomic<bool> holds_vacate_{false};
  std::function<void()> vacated_;  // under mutex_
  std::atomic<int> refused_binds_{0};
};

struct ClusterOptions {
  std::size_t hosts = 1;
  Duration detection = seconds(1);
  Duration join_timeout = seconds(5);
  Duration stall_warning = seconds(10), stall_error = seconds(300);
  std::uint8_t tuned_classes = 0;
  protocol::Ordering ordering = protocol::Ordering::kTagged;  // of h0's jobs; the others say tagged
  std::uint32_t concurrent = 1;
};

// Hosts h0, h1, ... on 127.0.0.1 with ports of their own. Change `fabrics` and `keys` before start().
class Cluster {
 public:
  explicit Cluster(ClusterOptions options);
  ~Cluster();

  // Starts every host that is not running.
  void start();
  Status start_host(std::size_t host);
  // The daemon is gone without a word.
  void kill(std::size_t host);

  Control& control(std::size_t host) { return *controls_[host]; }
  Sessions& sessions(std::size_t host) { return *sessions_[host]; }
  Lane& lane(std::size_t host) { return *lanes_[host]; }
  static std::string name(std::size_t host) { return fmt::format("h{}", host); }

  // A rank of a job with `per_host` ranks on every host; its session's number is its rank (plus `base`).
  ports::JoinRequest request(std::uint32_t rank, std::uint32_t per_host = 1, const std::string& job = "j",
                             std::uint64_t base = 0);
  // Every rank joins; expects that all succeed.
  void join_all(std::uint32_t per_host = 1, const std::string& job = "j", std::uint64_t base = 0);

  std::vector<fabric::Fabric> fabrics;  // one per host, as each daemon reads its own copy
  std::vector<KeyPair> keys;
  std::vector<Settings> settings;  // of each host
  // What every host's status says beside control's own; none: nothing.
  std::function<nlohmann::json()> more_status;
  std::function<void(const std::string& name)> job_ended;  // of every host; none: nobody is told
  ClusterOptions options;

 private:
  std::vector<std::unique_ptr<Sessions>> sessions_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Control>> controls_;
};

// Why the session could not join; ok where it could, or was not answered, which is a failure of the test.
Status joined_error(Cluster& cluster, std::size_t host, std::uint64_t session);

// Whether the condition holds within so many seconds.
bool eventually(const std::function<bool()>& condition, double patience = 10);

// A TCP port of 127.0.0.1 that was free a moment ago.
std::uint16_t free_port();

protocol::TensorBody tensor(const std::string& name, std::uint64_t elements, Dtype dtype = Dtype::kFloat32);

}  // namespace tensorlane::control::testing
