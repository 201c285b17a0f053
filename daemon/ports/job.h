// A job as a lane must know it, the lane's face towards other threads, and what it tells them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/plan.h"
#include "daemon/ports/progress.h"
#include "daemon/ports/session.h"
#include "daemon/ports/transport.h"

namespace tensorlane::ports {

struct JobHost {
  std::string name;                    // in fabric.yaml
  std::vector<std::string> addresses;  // for data flows, by rail
  std::uint16_t data_port = 0;         // the host's data_port in fabric.yaml
  std::vector<Rank> ranks;             // ascending; local rank = position
};

// The roster of a job, decided by its leader; index in `hosts` = HostIndex, ordered by lowest rank. All hosts have the
// same number of rails.
struct JobSpec {
  std::string name;
  Owner owner;  // whom everything that the job takes is charged to
  JobCredentials credentials;
  std::vector<JobHost> hosts;
  std::uint32_t world_size = 1;
  Duration detection = seconds(10);

  std::size_t rails() const { return hosts.front().addresses.size(); }
  // The job as it would be with the ranks of a process set alone, all counted as the set does. `self` is its first host
  // where this one has no part in it.
  JobSpec narrowed(const protocol::World& world) const {
    JobSpec spec{name, owner, credentials, {}, world.size(), detection};
    for (std::uint16_t place = 0; place < world.hosts(); ++place) {
      JobHost host = hosts[world.host(HostIndex(place)).value];
      host.ranks.clear();
      for (const std::uint32_t rank : world.places().ranks(HostIndex(place))) host.ranks.push_back(Rank(rank));
      spec.hosts.push_back(std::move(host));
    }
    spec.credentials.self = world.place_of(credentials.self).value_or(HostIndex(0));
    return spec;
  }
};

// What a message that is not over waits for.
enum class MessageWait : std::uint8_t {
  kOtherEnd,  // that the other rank receives, or sends
  kCredit,    // a send: that fewer than kAnnouncedMessages wait to be received, of this host's to the other's
  kTransfer,  // both ends are there
};
inline constexpr std::uint32_t kAnnouncedMessages = 1024;

// What a lane accepts from other threads. Every call is queued and carried out on the lane's thread, those of one job
// in order, except that a plan waits for its memory while others pass it; none blocks. ResourceExhausted when the queue
// (of `kLaneMailbox` commands) is full.
class LanePort {
 public:
  virtual ~LanePort() = default;
  // Makes the engines, and lets peers make flows to them. Answer: LaneListener::on_job_connected or on_job_failed.
  virtual Status start_job(JobSpec spec) = 0;
  // A rank of this host takes part. Before its first submission and after start_job.
  virtual Status attach(JobId job, Rank rank, std::shared_ptr<ClientSession> session) = 0;
  // The plan of the job from now on: what it was, and the tensors of `added`, whose ids go on from there or take the
  // place of vacant ones; version, ordering and ranks are those of `added`. Flows open to the hosts that the plan needs
  // and that have none yet. `then` runs on the lane's thread once the plan is in force and these flows are up. Memory
  // or a flow that cannot be had is an on_job_failed.
  virtual Status apply_plan(JobId job, protocol::Plan added, std::function<void()> then) = 0;
  // Nothing is registered in `range` any more, which is that of one registration: what it took is given back, and other
  // tensors may come there. Every rank has completed what it has submitted of them; a rank of this host that has
  // submitted more, or a peer, is an on_job_failed. `then` runs on the lane's thread once it is so, and all is back.
  virtual Status vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) = 0;
  // Where this rank's buffer of a tensor lies whose plan is in force. Before the rank's first submission of it.
  virtual Status bind(JobId job, Rank rank, TensorId tensor, BufferPlace place) = 0;
  // From each tensor's next operation on, classes are those of these K - 1 descending thresholds, the lowest K of the
  // fabric. Only where the lane tunes; else it changes nothing (classes are this host's own affair, law 1).
  virtual Status use_thresholds(JobId job, std::vector<double> thresholds) = 0;
  // This host makes the flows to `peer`, which wants to exchange messages with it, if there are none. A peer that
  // cannot be changes nothing.
  virtual Status open_flows([[maybe_unused]] JobId job, [[maybe_unused]] HostIndex peer) { return {}; }
  // Fails everything pending and later with `cause`, closes the flows, tells sessions. Idempotent. Answer:
  // on_job_closed.
  virtual Status abort_job(JobId job, Status cause) = 0;
  // A peer has waited for this host's part in this operation since that long ago. Ranks that have not submitted it are
  // reported as late. An operation that is neither the current nor the next one changes nothing.
  virtual Status awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) = 0;
  // The rank has left, on whichever host: who waits for a message of it is told soon, and not after late_after.
  virtual Status rank_left([[maybe_unused]] JobId job, [[maybe_unused]] Rank rank) { return {}; }
  // The rank has gone in peace (nothing of it in flight). After the last one the job closes without an error:
  // on_job_closed.
  virtual Status detach(JobId job, Rank rank) = 0;
  // Whether the job's owner can have now what these tensors take on this host. Any thread, at once; nothing is taken.
  // Errors: kResourceExhausted, with the limit and the key of daemon.yaml that says it.
  virtual Status admit(const JobSpec&, std::span<const protocol::TensorBody>) const { return {}; }
};

// What a lane tells other threads. Called on the lane's thread; implementations only queue.
class LaneListener {
 public:
  virtual ~LaneListener() = default;
  // The job is there: its flows open as its plan comes to need them (apply_plan).
  virtual void on_job_connected(JobId job) = 0;
  // A flow broke, or cannot be made, or a peer or client broke the protocol. The lane has not aborted: control spreads
  // the cause and calls abort_job.
  virtual void on_job_failed(JobId job, const Status& cause) = 0;
  // The flows of the job are closed and no buffer of its sessions is used any more.
  virtual void on_job_closed(JobId job) = 0;

  // ---- reports, which a listener may ignore ----
  // `rank` of this host has not submitted `tensor` for `waited`, while others have. Repeated with growing `waited`.
  virtual void on_late(JobId, Rank /*rank*/, TensorId /*tensor*/, Duration /*waited*/) {}
  // This host has submitted the operation and lacks what `peer` announces before its part in it: for `waited`.
  // Repeated, of one operation at a time: who only sends in an operation is told nothing by those who wait for it.
  virtual void on_missing(JobId, HostIndex /*peer*/, TensorId, Sequence, Duration /*waited*/) {}
  // A message that `rank` of this host has sent or asked for `waited` ago is not over, and `peer` is its other end;
  // none: anybody may be. Repeated.
  virtual void on_message_waits(JobId, Rank /*rank*/, std::optional<Rank> /*peer*/, MessageWait, Duration /*waited*/) {}
  // Messages are to go between this host and `peer`, and it is the peer that makes the flows (LanePort::open_flows).
  // Not repeated.
  virtual void on_flows_wanted(JobId, HostIndex /*peer*/) {}
  // The job has begun another iteration here, so long after the one before. Only where the lane tunes.
  virtual void on_iteration(JobId, Duration /*time*/) {}
  // The lane turns, and this is how far the job's flows have come. About eight times in the job's detection time, while
  // it runs.
  virtual void on_progress(JobId, const LaneProgress&) {}
};

}  // namespace tensorlane::ports
