// One job on one host, from its first rank to its last: gathering -> connecting -> running -> closing -> done. No
// sockets and no threads: messages, calls and time come in, and go out through JobEnvironment. The host that
// MASTER_ADDR names leads: it knows the roster and the plan.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log_gate.h"
#include "common/base/log_share.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"
#include "common/fabric/link_speeds.h"
#include "common/json/json.h"
#include "daemon/control/agreement.h"
#include "daemon/control/counters.h"
#include "daemon/control/job_key.h"
#include "daemon/control/job_progress.h"
#include "daemon/control/liveness.h"
#include "daemon/control/message.h"
#include "daemon/control/proof.h"
#include "daemon/control/registrar.h"
#include "daemon/control/rendezvous.h"
#include "daemon/control/resolver.h"
#include "daemon/control/tuner.h"
#include "daemon/ports/job.h"
#include "daemon/ports/session.h"

namespace tensorlane::control {

// What a job asks of the daemon around it.
class JobEnvironment {
 public:
  virtual ~JobEnvironment() = default;
  // A connection to the host is wanted from now on, until release().
  virtual void need(const std::string& host) = 0;
  virtual void release(const std::string& host) = 0;
  // In order per host. False when the host takes nothing and its queue is full.
  virtual bool send(const std::string& host, const Message& message) = 0;
  // Dropped when something waits for the host already: for what is repeated anyway.
  virtual void offer(const std::string& host, const Message& message) = 0;
  virtual bool reachable(const std::string& host) = 0;
  // Of the addresses of hosts.
  virtual Resolver& resolver() = 0;
  // What the log may say of each user's jobs.
  virtual LogShare& log_share() = 0;
  // Keys of jobs that gather here and differ from this one in their leader or its port alone.
  virtual std::vector<JobKey> alike(const JobKey& key) const = 0;
  // Calls to lane and sessions are carried out in the order of these two together. An error comes back as Job::fail().
  virtual void lane(JobId job, std::function<Status(ports::LanePort&)> call) = 0;
  virtual void tell(std::function<void(ports::SessionEvents&)> call) = 0;
  // A function for the lane's thread that ends in Job::plan_in_force().
  virtual std::function<void()> when_plan_in_force(JobId job, Epoch epoch, std::uint32_t version) = 0;
};

// The same for every job of a daemon.
struct JobRules {
  const fabric::Fabric* fabric = nullptr;
  fabric::LinkSpeeds link_speeds;  // of it
  std::string host;
  Duration detection, join_timeout, stall_warning, stall_error;
  // These three: of a process set, with the job narrowed to it.
  std::function<protocol::PlanTensor(const protocol::TensorBody&, const ports::JobSpec&)> planner;
  std::function<void(const std::vector<protocol::TensorBody>&, const ports::JobSpec&,
                     std::vector<protocol::PlanTensor>*)>
      batch_planner;               // none: no batches
  std::uint8_t tuned_classes = 0;  // jobs that this host leads search for thresholds between so many; 0: they do not
  protocol::Ordering ordering = protocol::Ordering::kTagged;
  std::uint32_t concurrent = 1;
  // LanePort::admit.
  std::function<Status(const ports::JobSpec&, const std::vector<protocol::TensorBody>&)> admit;
  std::function<void(JobId, Epoch, const std::string& name)> job_failed;  // may be empty
  Settings settings;  // of this host, which all hosts of a job must have alike
};

class Job final : private RegistrarOutput {
 public:
  enum class State { kGathering, kConnecting, kRunning, kClosing, kDone };

  // `first` is the rank that brings the job up; it still has to join(). `epoch` counts only where this host leads.
  Job(const JobRules& rules, JobEnvironment& environment, ControlCounters& counters, const ports::JoinRequest& first,
      JobKey key, Epoch epoch, Time now);
  ~Job() override;

  JobId id() const { return id_; }
  const JobKey& key() const { return key_; }
  const std::string& name() const { return name_; }
  Epoch epoch() const { return epoch_; }
  State state() const { return state_; }
  const Status& cause() const { return cause_; }
  // Those that take part; this one alone while the job gathers.
  std::vector<std::string> host_names() const;
  // No rank of this host takes part any more; another job of the key can begin once this one is done.
  bool winding_down() const {
    return state_ == State::kClosing || state_ == State::kDone || (state_ == State::kRunning && locals_gone());
  }
  Duration tick_interval() const;
  nlohmann::json describe(Time now) const;
  nlohmann::json describe_to_others() const;

  // ---- sessions of this host ----
  void join(const ports::JoinRequest& request, Time now);
  void register_group(ports::SessionId session, std::uint32_t request, const std::string& group,
                      std::vector<protocol::TensorBody> tensors, const std::vector<std::uint32_t>& ranks, Time now);
  // A rank waits no longer for its registration: the ranks that are missing are at fault, not this one.
  void overdue(ports::SessionId session, std::uint32_t request, Time now);
  void unregister_group(ports::SessionId session, std::uint32_t request, const std::string& group,
                        std::uint64_t operations, Duration patience, Time now);
  // False when the session has no part in the job (any more).
  bool leave(ports::SessionId session, const Status& why, Time now);

  // ---- the lane ----
  void lane_connected(Time now);
  void lane_failed(const Status& cause, Time now);
  void lane_late(Rank rank, TensorId tensor, Duration waited, Time now);
  void lane_misses(HostIndex peer, TensorId tensor, Sequence sequence, Duration waited, Time now);
  void lane_wants_flows(HostIndex peer, Time now);
  void lane_message_waits(Rank rank, std::optional<Rank> peer, ports::MessageWait why, Duration waited, Time now);
  void lane_iteration(Duration time, Time now);
  void lane_progress(const ports::LaneProgress& progress, Time now);
  void lane_closed(Time now);
  void plan_in_force(std::uint32_t version, Time now);

  // ---- peers ----
  // Whether anything but a join of this host can be meant for this job: what it says is not read otherwise.
  bool listens_to(const std::string& host) const;
  // False when the message is malformed or not this host's to send: the caller drops and counts it. What is of another
  // epoch is counted here.
  bool handle(const std::string& from, const Message& message, Time now);
  // A host speaks another version of the control protocol. A leader tells it so and remembers it: if ranks are missed,
  // it may be why. Where it is the leader, the job cannot come about.
  void hear_another_version(const std::string& from, const Status& why, Time now);

  // A host asks for the job `key`, which does not exist here. Where it differs from this one in user or port alone, and
  // ranks are missed, that may be why.
  void hear_other_key(const std::string& from, const JobKey& key);

  void tick(Time now);
  // Ends the job on every host with `cause`, unless it is ending already: the first cause wins.
  void fail(Status cause, Time now);

 private:
  struct LocalRank {
    ports::SessionId session;
    std::shared_ptr<ports::ClientSession> client;
    Claim claim;
    bool joined = false;  // it was told that it takes part
    bool gone = false;    // in peace or not: it is told nothing any more
  };
  // A follower as its leader sees it.
  struct Follower {
    std::string nonce, leader_nonce;
    bool proven = false;
    // Guessing is slow: after a wrong proof the host is not answered for a while, longer each time.
    std::uint32_t wrong_proofs = 0;
    Time answer_from;
    Time heard;         // it repeats itself while it waits
    bool lost = false;  // it has fallen silent since it came
    Settings settings;  // once proven
  };
  struct LateReport {
    Duration waited;
    Time at;
  };
  struct StandstillReport {
    Standstill standstill;
    Time at;
  };

  // A line of the log, unless the job's user has brought about too many.
  template <typename... Args>
  void log(spdlog::level::level_enum level, fmt::format_string<Args...> format, Args&&... args) const {
    const std::string line = fmt::format(format, std::forward<Args>(args)...);
    if (const auto held_back = environment_.log_share().pass(key_.uid, now_))
      spdlog::log(level, "{}{}", line, held_back_text(*held_back));
  }
  bool i_lead() const { return rules_.host == leader_; }
  std::string where() const;
  std::vector<Claim> local_claims() const;
  Result<std::uint32_t> running_rank(ports::SessionId session) const;
  bool is_member(const std::string& host) const { return roster_.index_of(host).has_value(); }
  bool locals_gone() const;
  Status check_secret(const ports::JoinRequest& request) const;
  void expect_patience(const ports::JoinRequest& request);
  std::string impatient_text() const;
  std::string others_text() const;

  // gathering
  void tick_gathering();
  void forget_silent_followers();
  Status gathering_timed_out() const;
  void send_join();
  bool handle_join(const std::string& from, const Message& message);
  bool handle_challenge(const Message& message);
  bool handle_proof(const std::string& from, const Message& message);
  bool handle_refuse(const Message& message);
  bool handle_roster(const Message& message);
  Status check_roster(const Roster& roster) const;
  void refuse(const std::string& host, const std::string& nonce, const Status& status);
  void lead();
  Settings settings_with(const std::string& other) const;
  Status check_settings() const;
  bool resolve_addresses(Roster* roster);
  std::string unresolved(const std::string& host) const;
  void send_roster(const std::string& host);
  void refuse_wrong_proof(const std::string& from, const std::string& nonce, Follower& follower);
  void begin(Roster roster, Duration detection, ports::PairKeys keys);
  ports::JobSpec make_spec(ports::PairKeys keys) const;
  void log_begin() const;

  // connecting, running
  void tick_running();
  Status connecting_timed_out() const;
  bool handle_member(const std::string& from, const Message& message);
  bool handle_abort(const std::string& from, const Message& message);
  bool dispatch(const std::string& from, MessageType type, const nlohmann::json& body);
  bool handle_connected(const std::string& from);
  bool handle_late(const nlohmann::json& body);
  bool handle_awaited(const nlohmann::json& body);
  bool handle_flows(const std::string& from, const nlohmann::json& body);
  bool handle_left(const std::string& from, const nlohmann::json& body);
  bool handle_thresholds(const nlohmann::json& body);

  // traffic that stands still (job_standstills.cc)
  JobProgress make_progress() const;
  void check_progress();
  bool handle_standstill(const std::string& from, const nlohmann::json& body);
  void note_standstill(HostIndex from, const Standstill& standstill);
  std::string standstill_what(HostIndex from, const Standstill& standstill) const;
  nlohmann::json describe_standstills() const;
  std::string class_name(ClassId cls) const;
  void go();
  void set_planners(RegistrarConfig* config);
  const ports::JobSpec& spec_for(const protocol::SharedWorld& world);
  void note_late(std::uint32_t rank, const std::string& what, Duration waited);
  bool plans(TensorId tensor) const;
  std::string what_tensor(TensorId tensor) const;
  std::string what_message(std::uint32_t rank, std::uint32_t peer, ports::MessageWait why) const;
  bool fail_if_left(std::uint32_t rank, TensorId tensor);
  void rank_left(std::uint32_t rank);
  void end_in_peace();
  void finish();

  // sending
  void need(const std::string& host);
  Message message(MessageType type, nlohmann::json body) const;
  void send_member(const std::string& host, MessageType type, nlohmann::json body);
  void send_others(MessageType type, const nlohmann::json& body);
  void settle();
  void do_fail(const Status& cause);
  void flood_abort();

  // RegistrarOutput
  void to_leader(MessageType type, nlohmann::json body) override;
  void to_all_hosts(MessageType type, nlohmann::json body) override;
  void apply_plan(protocol::Plan added) override;
  void vacate(std::uint32_t version, protocol::TensorRange range) override;
  void bind(std::uint32_t rank, TensorId tensor, ports::BufferPlace place) override;
  void answer(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) override;
  void answer_unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) override;
  void report_late(std::uint32_t rank, const std::string& what, Duration waited) override;
  void fail_job(Status cause) override;
  void note(const std::string& line) override { log(spdlog::level::info, "{}", line); }

  const JobRules& rules_;
  JobEnvironment& environment_;
  ControlCounters& counters_;
  const JobKey key_;
  const std::string &name_ = key_.name, &leader_ = key_.leader;
  const JobId id_;
  const Secret secret_;
  const Secret root_ = random_root();  // of the pair keys, where this host leads
  Time now_;                           // of the call that is being carried out
  State state_ = State::kGathering;
  Epoch epoch_;
  Status cause_;
  std::vector<LocalRank> locals_;
  std::set<std::string> needed_;  // hosts that a connection is held to

  Gathering gathering_;
  Duration patience_;                       // join_timeout, or the shortest of the clients' own
  std::optional<std::uint32_t> impatient_;  // the rank whose it is
  Time deadline_, next_join_;
  bool waits_for_names_ = false;                // leader: the world is complete, but some address does not resolve
  std::string nonce_, leader_nonce_;            // follower: its own; the leader's, once challenged
  std::map<std::string, Follower> followers_;   // leader
  std::map<std::string, std::string> refused_;  // leader: host -> why, for the error when ranks do not come

  Roster roster_;
  ports::JobSpec spec_;
  protocol::SharedWorld narrowed_to_;  // the last process set of which tensors were planned,
  ports::JobSpec narrowed_;            // and the job narrowed to it
  std::optional<Liveness> liveness_;
  std::optional<JobProgress> progress_;
  std::map<std::tuple<HostIndex, HostIndex, RailIndex, ClassId>, StandstillReport>
      standstills_;  // from, to, rail, class
  std::optional<Registrar> registrar_;
  std::optional<Tuner> tuner_;                            // leader, where it tunes
  std::set<std::string> connected_;                       // leader: hosts whose lanes have the job
  std::set<std::uint32_t> left_;                          // ranks of all hosts that have left in peace
  Time last_left_;                                        // when one of them did, last
  std::map<std::string, std::uint64_t> sent_, received_;  // sequenced messages per member
  std::deque<std::pair<MessageType, nlohmann::json>> to_self_;
  std::deque<Status> failures_;  // asked for from inside other calls; settle() carries them out
  bool settling_ = false;
  std::map<std::pair<std::uint32_t, std::string>, LateReport> late_;
  std::map<std::uint32_t, Time> late_logged_;
  LogGate log_gate_;
};

const char* state_name(Job::State state);

// The key of the job that a kJoin asks `leader` for; nothing when it is malformed.
std::optional<JobKey> key_of_join(const Message& join, const std::string& leader);

}  // namespace tensorlane::control
