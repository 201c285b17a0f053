// Registration across the hosts of one job: every host brings one list per group, the leader compares them and extends
// the plan in two phases (law 1): first every host has it in force, then any rank may submit under it. Pure: messages
// go in and out through RegistrarOutput.
//
//   rank registers -> [all local ranks agree] -> kGroup -> leader: [all hosts agree] -> kPlan -> lane -> kPlanned ->
//   [all hosts] -> kActivate
//
// A group leaves the plan in the same way, and its places are free for others (registrar_leaving.cc):
//
//   rank unregisters -> kUnregister -> leader: [all ranks have] -> kVacate -> lane -> kPlanned -> [all hosts] ->
//   kActivate
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/plan.h"
#include "common/protocol/plan_hash.h"
#include "daemon/control/message.h"
#include "daemon/control/registration.h"
#include "daemon/control/rendezvous.h"
#include "daemon/ports/session.h"

namespace tensorlane::control {

// Decides pattern, class, urgency, slice and width of one tensor of a world; everything else is the registrar's.
using TensorPlanner = std::function<protocol::PlanTensor(const protocol::TensorBody&, const protocol::SharedWorld&)>;

// Appends to the planned tensors, which have no ids yet, those that shall carry several of them: their batches
// (PlanTensor::batch is a position). The first list is what the ranks have registered.
using BatchPlanner = std::function<void(const std::vector<protocol::TensorBody>&, const protocol::SharedWorld&,
                                        std::vector<protocol::PlanTensor>*)>;

// What the registrar asks for. Calls come from inside its own calls.
class RegistrarOutput {
 public:
  virtual ~RegistrarOutput() = default;
  virtual void to_leader(MessageType type, nlohmann::json body) = 0;
  virtual void to_all_hosts(MessageType type, nlohmann::json body) = 0;  // this one included
  virtual void apply_plan(protocol::Plan added) = 0;                     // new tensors; answer: plan_in_force()
  // Answer: plan_in_force().
  virtual void vacate(std::uint32_t version, protocol::TensorRange range) = 0;
  virtual void bind(std::uint32_t rank, TensorId tensor, ports::BufferPlace place) = 0;
  virtual void answer(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) = 0;
  // How many tensors the rank had registered with the group.
  virtual void answer_unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) = 0;
  virtual void report_late(std::uint32_t rank, const std::string& what, Duration waited) = 0;
  virtual void fail_job(Status cause) = 0;
  virtual void note(const std::string& line) = 0;  // for the log
};

struct RegistrarConfig {
  std::string job, self, leader;
  Roster roster;
  TensorPlanner planner;
  BatchPlanner batch_planner;  // none: no batches
  Duration stall_warning, stall_error;
  protocol::Ordering ordering = protocol::Ordering::kTagged;  // these two: the leader's
  std::uint32_t concurrent = 1;
  // Whether this host has room for the tensors; none: it has.
  std::function<Status(const std::vector<protocol::TensorBody>&, const protocol::SharedWorld&)> admit = {};
};

// As messages name them; none for all ranks.
nlohmann::json ranks_to_json(const protocol::SharedWorld& world);

class Registrar {
 public:
  Registrar(RegistrarConfig config, RegistrarOutput& output);

  // A rank of this host registers a group, which all of `ranks` do, ascending and it among them; none: all of the job.
  void register_group(std::uint32_t rank, ports::SessionId session, std::uint32_t request, const std::string& group,
                      std::vector<protocol::TensorBody> tensors, const std::vector<std::uint32_t>& ranks = {});
  // What this session registers takes longer than its program waits: the job fails, and the error names who is missing.
  void overdue(ports::SessionId session, std::uint32_t request);
  // A rank of this host unregisters a group, and has completed so many operations on all of its tensors together. It
  // waits for the answer for `patience`; 0: as long as it takes; ports::kForGood: the answer comes at once, and the
  // group leaves the plan as soon as all of its ranks have said so, or have left the job.
  void unregister_group(std::uint32_t rank, ports::SessionId session, std::uint32_t request, const std::string& group,
                        std::uint64_t operations, Duration patience);
  // The lane has this version in force.
  void plan_in_force(std::uint32_t version);
  // A message from a host of the job; false when its body is malformed or it is not this host's to say.
  bool handle(const std::string& from, MessageType type, const nlohmann::json& body, Time now);
  // Whether a rank of this host does not come back to the tensor, which is still in the plan.
  bool has_left_for_good(std::uint32_t rank, TensorId tensor) const;
  // A rank has left: nobody waits for it any more, who needs it learns that.
  void rank_left(std::uint32_t rank);
  // Reports and, past the error time, fails registrations that ranks are missing from, and plans that some host has not
  // in force; refuses what only some ranks unregister. Leader only.
  void tick(Time now);
  // Answers every waiting rank with `cause`.
  void fail(const Status& cause);

  const protocol::Plan& plan() const { return plan_; }
  // Of it, kept as it changes: a status asks for them, and clients ask for statuses as often as they like.
  struct Totals {
    std::uint64_t hash = 0;
    std::size_t tensors = 0;               // places that are not vacant
    std::size_t batches = 0, batched = 0;  // tensors that are batches, and that travel in one
  };
  const Totals& totals() const { return totals_; }

 private:
  // What waits on this host.
  struct LocalRank {
    RankGroup group;
    ports::SessionId session;
    std::uint32_t request = 0;
  };
  struct LocalGroup {
    protocol::SharedWorld world;  // none: all ranks, here and below
    std::map<std::uint32_t, LocalRank> ranks;
    bool sent = false;
  };
  // What waits at the leader.
  struct HostGroup {
    RankGroup group;
    Status disagreement;  // of the ranks of that host
  };
  struct Round {
    protocol::SharedWorld world;
    Time since;
    Duration reported;  // the last waiting time that was reported
    std::map<std::string, HostGroup> hosts;
    std::set<std::uint32_t> arrived;  // ranks, also of hosts that are not complete
  };
  struct Change {
    std::string group;
    protocol::SharedWorld world;
    std::vector<protocol::PlanTensor> tensors;
    std::set<std::string> waiting;  // hosts that have not got it in force
    std::optional<Time> since;      // of the one that is under way: when tick() saw it first
    Duration reported;              // the last waiting time that was noted
    bool leaves = false;            // the group leaves the plan
  };
  // A group that is in the plan.
  struct Group {
    protocol::TensorRange range;
    protocol::SharedWorld world;
    bool active = false;     // in force everywhere, and not about to leave
    std::uint32_t left = 0;  // once it leaves: how many tensors a rank had registered with it
  };
  // What unregisters on this host.
  struct LeavingRank {
    ports::SessionId session;
    std::uint32_t request = 0;
  };
  // A group that ranks unregister, at the leader.
  struct Departure {
    Time since;
    Duration reported;
    Time deadline;                                   // when somebody gives up; 0: nobody does
    std::map<std::uint32_t, std::uint64_t> arrived;  // ranks, and the operations that they have completed
    std::set<std::uint32_t> for_good;                // of these
  };
  static constexpr std::uint64_t kMostPatience = std::uint64_t{1} << 62;

  void refuse(const LocalRank& local, Status status);
  void send_local_group(const std::string& group, LocalGroup& local);
  bool handle_arrived(const std::string& from, const nlohmann::json& body, Time now);
  bool handle_group(const std::string& from, const nlohmann::json& body, Time now);
  bool handle_overdue(const std::string& from, const nlohmann::json& body, Time now);
  void fail_missing(const std::string& group, const Round& round, Duration waited, const std::string& or_raise);
  void tick_change(Time now);
  void fail_change(Duration waited, const std::string& or_raise);
  bool handle_plan(const nlohmann::json& body);
  bool handle_planned(const std::string& from, const nlohmann::json& body);
  bool handle_activate(const nlohmann::json& body);
  bool handle_rejected(const nlohmann::json& body);
  bool check_hash(std::uint64_t hash);
  // registrar_leaving.cc
  bool handle_unregister(const std::string& from, const nlohmann::json& body, Time now);
  bool handle_vacate(const nlohmann::json& body);
  bool handle_stays(const nlohmann::json& body);
  void finish_departure(const std::string& group);
  void leave_for_good(std::uint32_t rank, ports::SessionId session, std::uint32_t request, const std::string& group,
                      std::uint64_t operations);
  Status count_operations(const std::string& group, std::uint64_t operations);
  void reject(const std::string& group, const Status& status);
  void look_if_left(const std::string& group);
  void reject_departures_without(std::uint32_t rank);
  void tick_departures(Time now);
  void let_go(const std::string& group);
  void fail_leaving(const Status& cause);
  void activate(const std::string& group, LocalGroup& local);
  void finish_round(const std::string& group);
  Status compare_hosts(const std::string& group, const Round& round) const;
  void add_batches(const Change& change, const std::vector<protocol::TensorBody>& registered,
                   std::vector<protocol::PlanTensor>* tensors) const;
  std::vector<protocol::PlanTensor> plan_tensors(const std::vector<protocol::TensorBody>& tensors,
                                                 const protocol::SharedWorld& world) const;
  protocol::Plan empty_plan() const;
  void start_next_change();
  bool start(Change& change);
  protocol::TensorRange room_for(std::uint32_t count) const;
  void take_into_plan(protocol::TensorRange range, std::vector<protocol::PlanTensor> tensors);
  // registrar_leaving.cc
  void take_out_of_plan(protocol::TensorRange range);
  std::span<const protocol::PlanTensor> tensors_in(protocol::TensorRange range) const {
    return std::span(plan_.tensors).subspan(range.first, range.count);
  }
  // Ranks of the world that have not come, of a round or a departure.
  template <class Gathered>
  std::vector<std::uint32_t> missing(const Gathered& gathered, const protocol::SharedWorld& world) const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < config_.roster.world_size; ++rank) {
      if (has(world, rank) && !gathered.arrived.contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  // registrar_worlds.cc
  static bool has(const protocol::SharedWorld& world, std::uint32_t rank);
  std::uint32_t size_of(const protocol::SharedWorld& world) const;
  std::size_t ranks_here(const protocol::SharedWorld& world) const;
  std::vector<const RosterHost*> hosts_of(const protocol::SharedWorld& world) const;
  std::optional<protocol::SharedWorld> world_of(const std::vector<std::uint32_t>& ranks);
  std::optional<protocol::SharedWorld> world_from_json(const nlohmann::json& ranks);
  Round* round(const std::string& group, const protocol::SharedWorld& world, std::uint32_t rank, Time now);
  Status differing(const std::string& group, std::uint32_t rank, const protocol::SharedWorld& world,
                   std::uint32_t other_rank, const protocol::SharedWorld& other) const;
  void reject_registration(const std::string& group, const protocol::SharedWorld& world, const Status& status);
  void fail_if_left(const std::string& group, const Round& round);

  const RegistrarConfig config_;
  RegistrarOutput& output_;
  std::vector<std::uint32_t> local_ranks_;
  protocol::Plan plan_;                    // in force on this host, or on its way to the lane
  protocol::PlanHash hash_;                // of plan_'s tensors
  Totals totals_;                          // of plan_
  std::map<std::string, TensorId> names_;  // of plan_
  std::map<std::string, Group> groups_;    // of plan_
  std::map<std::string, LocalGroup> local_;
  std::map<std::string, std::map<std::uint32_t, LeavingRank>> leaving_;
  std::map<std::string, std::set<std::uint32_t>> for_good_;  // ranks of this host that do not come back
  std::map<std::string, Round> rounds_;                      // leader
  std::map<std::string, Departure> departures_;              // leader
  Time next_look_, reported_until_;                          // at them; and when others may be reported
  std::size_t reported_ = 0;                                 // departures that were reported until then
  std::deque<Change> changes_;                               // leader; the first one is under way
  std::set<std::string> changing_names_;                     // leader: tensors of `changes_`
  std::set<std::uint32_t> left_;
  std::map<std::vector<std::uint32_t>, std::weak_ptr<const protocol::World>> worlds_;  // those in use, and some more
  std::size_t worlds_looked_at_ = 16;  // so many are kept until those that nobody uses go
  // Leader: the sequences that tensors go on from, by their places in the plan.
  std::vector<std::uint64_t> bases_;
};

}  // namespace tensorlane::control
