// The control plane of one daemon: who takes part in a job, what they register, who is alive, and how a job ends (laws
// 1, 10, 14).
//
// One thread runs everything; calls from other threads are queued. The rules are in classes without sockets:
// rendezvous.h (who), registration.h and registrar.h (what), liveness.h (alive), job.h (one job from first rank to
// last). wire.h carries messages between daemons.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "daemon/control/counters.h"
#include "daemon/control/inbox.h"
#include "daemon/control/job.h"
#include "daemon/control/questions.h"
#include "daemon/control/wire.h"
#include "daemon/ports/job.h"
#include "daemon/ports/session.h"

namespace tensorlane::control {

struct ControlConfig {
  const fabric::Fabric* fabric = nullptr;  // outlives Control
  std::string host;                        // this one, as the fabric file names it
  std::string secret_key;                  // CURVE, Z85; not needed in a fabric of one host
  Duration detection = seconds(10);        // of the jobs that this host leads; every host of a job uses its leader's
  Duration join_timeout = seconds(60);     // from a job's first rank to its last, and from there to all flows
  Duration stall_warning = seconds(10);    // a rank that others wait for is reported
  Duration stall_error = seconds(300);     // and then fails the job
  // Of the plans of jobs that this host leads.
  protocol::Ordering ordering = protocol::Ordering::kTagged;
  std::uint32_t concurrent = 1;
  // Decides pattern, class, urgency, slice_elements and fp32_contributions of one tensor; control fills in the rest.
  // Runs on the leader's control thread only.
  std::function<protocol::PlanTensor(const protocol::TensorBody&, const ports::JobSpec&)> planner;
  // Appends the batches of tensors that were registered together (registrar.h). As `planner`; none: no batches.
  std::function<void(const std::vector<protocol::TensorBody>&, const ports::JobSpec&,
                     std::vector<protocol::PlanTensor>*)>
      batch_planner;
  // The last job of this name that this host has taken part in is over: what was planned for it is of no more use.
  // Control's thread. May be empty.
  std::function<void(const std::string& name)> job_ended;
  // A job has failed on this host. Control's thread. May be empty.
  std::function<void(JobId job, Epoch epoch, const std::string& name)> job_failed;
  Settings settings;               // of this host, which all hosts of a job must have alike (law 22)
  std::uint8_t tuned_classes = 0;  // jobs that this host leads search for thresholds between so many; 0: they do not
  // What the status is to say beside control's own, merged into its top level. Control's thread. May be empty.
  std::function<nlohmann::json()> more_status;
  // What this daemon answers beside "status", which is control's own.
  ports::Answerers answerers;
};

class Control final : public ports::JobControl,
                      public ports::LaneListener,
                      private JobEnvironment,
                      private QuestionEnvironment {
 public:
  explicit Control(ControlConfig config);
  // Without stop() everything is dropped at once, as if the daemon had crashed.
  ~Control() override;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Binds the control port and starts the thread. `lane` and `sessions` outlive Control. Errors: those of Wire::open,
  // and kInvalidArgument for a host that the fabric file does not name.
  Status start(ports::LanePort& lane, ports::SessionEvents& sessions);
  // Aborts every job, tells the peers, waits (at most a second) until the lane has closed them, and ends the thread.
  // Calls after it do nothing.
  void stop();

  // Asks the daemon of another host, as an operator. Any thread; `done` comes on control's, or never after stop().
  void ask_host(const std::string& host, const std::string& kind, const nlohmann::json& args, Duration patience,
                ports::Answered done);

  ControlCounts counts() const { return counters_.snapshot(); }
  // Of the thread's loop, at least two in a second. Any thread.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

  // ports::JobControl. Any thread.
  void join(ports::JoinRequest request) override;
  void register_group(ports::SessionId session, std::uint32_t request, std::string group,
                      std::vector<protocol::TensorBody> tensors, std::vector<std::uint32_t> ranks = {}) override;
  void overdue(ports::SessionId session, std::uint32_t request) override;
  void unregister_group(ports::SessionId session, std::uint32_t request, std::string group, std::uint64_t operations,
                        Duration patience) override;
  void leave(ports::SessionId session, Status why) override;
  void status(ports::SessionId session, std::uint32_t uid, std::uint32_t request) override;
  void ask(ports::SessionId session, std::uint32_t uid, std::uint32_t request, std::string question) override;

  // ports::LaneListener. The lane's thread.
  void on_job_connected(JobId job) override;
  void on_job_failed(JobId job, const Status& cause) override;
  void on_late(JobId job, Rank rank, TensorId tensor, Duration waited) override;
  void on_missing(JobId job, HostIndex peer, TensorId tensor, Sequence sequence, Duration waited) override;
  void on_flows_wanted(JobId job, HostIndex peer) override;
  void on_message_waits(JobId job, Rank rank, std::optional<Rank> peer, ports::MessageWait why,
                        Duration waited) override;
  void on_iteration(JobId job, Duration time) override;
  void on_progress(JobId job, const ports::LaneProgress& progress) override;
  void on_job_closed(JobId job) override;

 private:
  struct Session {
    JobId job;
    Status ended;  // why its job is no more; ok while it is
  };
  struct DeferredJoin {
    ports::JoinRequest request;
    Time deadline;
  };

  struct StatusQuestion {
    ports::SessionId session;
    std::uint32_t request;
  };

  // QuestionEnvironment, which shares some with JobEnvironment.
  void later(std::function<void()> what) override { inbox_.event(std::move(what)); }
  void reply(ports::SessionId session, std::uint32_t request, std::string json) override;
  std::vector<std::string> hosts() const override;
  std::vector<JobId> jobs_shown(std::uint32_t uid, const std::string& from) const override;
  Result<std::pair<std::uint64_t, std::vector<std::string>>> hosts_of_job(std::uint32_t uid,
                                                                          const std::string& text) const override;

  // JobEnvironment. Control's thread.
  LogShare& log_share() override { return log_share_; }
  void need(const std::string& host) override;
  void release(const std::string& host) override;
  bool send(const std::string& host, const Message& message) override;
  void offer(const std::string& host, const Message& message) override;
  bool reachable(const std::string& host) override;
  Resolver& resolver() override { return resolver_; }
  std::vector<JobKey> alike(const JobKey& key) const override;
  void lane(JobId job, std::function<Status(ports::LanePort&)> call) override;
  void tell(std::function<void(ports::SessionEvents&)> call) override;
  std::function<void()> when_plan_in_force(JobId job, Epoch epoch, std::uint32_t version) override;

  void run();
  void turn();
  Duration time_to_wait() const;
  void receive(const std::string& from, std::span<const std::byte> bytes);
  Status check_envelope(const std::string& from, std::span<const std::byte> bytes);
  void do_join(ports::JoinRequest request, Time deadline);
  void do_register(ports::SessionId session, std::uint32_t request, const std::string& group,
                   std::vector<protocol::TensorBody> tensors, const std::vector<std::uint32_t>& ranks);
  Result<Job*> job_of(ports::SessionId session);
  void do_leave(ports::SessionId session, const Status& why);
  void do_stop();
  void retry_deferred_joins();
  void forget_finished_jobs();
  void flush_lane();
  Job* find(JobId job);
  void note_other_key(const std::string& from, const Message& join);
  Epoch next_epoch();
  ports::Answerers answerers();
  // As user `uid` of the host `from` may see it: of another host only jobs in which it takes part.
  nlohmann::json describe(std::uint32_t uid, const std::string& from) const;
  bool shows(const Job& job, std::uint32_t uid, const std::string& from) const;
  void answer_questions();

  const ControlConfig config_;
  ControlCounters counters_;
  Inbox inbox_;
  JobRules rules_;
  ports::LanePort* lane_port_ = nullptr;
  ports::SessionEvents* session_events_ = nullptr;
  Resolver resolver_{[this] { inbox_.event([] {}); }};
  std::unique_ptr<Wire> wire_;
  std::thread thread_;
  std::atomic<bool> quit_{false};
  std::atomic<std::uint64_t> turns_{0};

  // Control's thread only.
  Time now_, started_, stop_by_;
  bool stopping_ = false;
  Epoch last_epoch_;
  std::map<JobId, std::unique_ptr<Job>> jobs_;
  std::map<ports::SessionId, Session> sessions_;
  std::deque<DeferredJoin>
      deferred_joins_;  // for a job of that name that is still being closed; bounded by the inbox and the sessions
  std::deque<std::function<bool()>> lane_calls_;  // in order; false: the lane's queue is full, come again
  std::map<std::uint32_t, std::vector<StatusQuestion>> status_questions_;  // who wants to know the status, by user
  std::uint32_t last_asked_ = 0;                                           // the user who was answered last
  Questions questions_;
  LogGate log_gate_;
  LogShare log_share_;
};

}  // namespace tensorlane::control
