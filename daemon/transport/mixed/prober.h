// Measures what transports do to a peer, over flows of their own between the same hosts: of the same keys, in the
// least urgent class. The host that connects measures and chooses; the one that accepts answers, one measurement at a
// time, and is told the outcome before the first flow of the job comes.
//
//   connecting end                                        accepting end
//   kRts: it is my turn                              ->   (those who ask wait in line)
//                                                    <-   kGrant: measure now, payloads land here
//   kData, kData... (probe.h)                        ->
//                                                    <-   kCredit: the message of this sequence number is there
//   kReady: the next one may measure                 ->
//   after the last transport, kData: the outcome     ->
//                                                    <-   kCredit
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/mixed/choice.h"
#include "daemon/transport/mixed/probe.h"

namespace tensorlane::mixed {

// One thread. Callbacks of the transports only take notes: everything is sent, and ends, in poll().
class Prober {
 public:
  struct Member {
    std::string name;
    std::uint16_t port_offset = 0;
    ports::Transport* transport = nullptr;
  };
  // What measure() came to. `choice` is of these members, in this order; `measured`: one of them at least has figures.
  struct Outcome {
    JobId job;
    HostIndex peer;
    std::vector<std::size_t> members;
    Choice choice;
    bool measured = false;
  };

  // Members are added before anything else is called, the most capable first.
  explicit Prober(ClassId cls);
  ~Prober();
  void add_member(Member member) { members_.push_back(std::move(member)); }

  void add_job(const ports::JobCredentials& credentials);
  void remove_job(JobId job);

  // Measures these members, at least two, to a peer that we connect to; take() has the outcome in a third of the time
  // to `deadline`. False: fewer than two can even be tried, and there will be none.
  bool measure(JobId job, HostIndex peer, const std::string& address, std::uint16_t data_port,
               const std::vector<std::size_t>& members, Time deadline);
  std::optional<Outcome> take();
  // The outcome that a peer which connects to us has reported; empty before it has.
  std::vector<ports::PathCandidate> reported(JobId job, HostIndex peer) const;

  // Whether flows of this job are the prober's; the calls below are for those.
  bool owns(JobId job) const { return jobs_.contains(job); }
  ports::FrameSink& up(std::size_t member, const ports::FlowKey& key, ports::Flow& flow);
  void down(std::size_t member, const ports::FlowKey& flow, const Status& cause);

  // Before and after every poll of the members. poll() returns how much it did.
  void begin(Time now) { now_ = now; }
  std::size_t poll();
  // When poll() has something to do that no flow tells of.
  std::optional<Time> next_deadline() const;

 private:
  struct Job {
    JobId real;
    HostIndex self;
    bool removed = false;  // it stays until the last flow of it is down
  };
  // A flow of the prober over one member.
  struct Channel {
    std::size_t member = 0;
    ports::FlowKey flow;
    auto operator<=>(const Channel&) const = default;
  };
  class Line;
  struct Trial {
    enum class State { kDialing, kUp, kOver };
    std::size_t member = 0;
    State state = State::kDialing;
    bool open = true;  // it has not been reported down
    Candidate result;
  };
  struct Measurement {
    ports::FlowKey flow;        // of every trial
    Time dialing_until, until;  // when a poll has set them; before, the deadline
    bool timed = false;
    std::vector<Trial> trials;
    std::optional<Outcome> outcome;  // the peer is being told, until `until`
    bool finished = false;
  };
  // The one trial that runs.
  struct Run {
    Channel channel;
    bool granted = false;
    Time until;
    Probe probe;
  };
  struct Message {
    Channel to;
    ports::Outgoing operation;
  };

  bool live(JobId job) const {
    const auto found = jobs_.find(job);
    return found != jobs_.end() && !found->second.removed;
  }
  bool accepts(const ports::FlowKey& flow) const { return flow.peer < jobs_.at(flow.job).self; }
  Result<std::span<std::byte>> landing(const Channel& from, const protocol::FrameHeader& header);
  void frame(const Channel& from, const protocol::FrameHeader& header);
  Measurement* find(const ports::FlowKey& flow);
  Trial* trial(const Channel& channel);
  void serve_frame(const Channel& from, const protocol::FrameHeader& header);
  void measure_frame(const Channel& from, const protocol::FrameHeader& header);
  void advance(Measurement& measurement);
  void settle_dialing(Measurement& measurement);
  // False: no trial of it is left to run, or another measurement has its turn.
  bool run_next(Measurement& measurement);
  void end_run(const std::string& why_not);
  void conclude(Measurement& measurement);
  void finish(Measurement& measurement);
  void stop_serving(const Channel& channel);
  void serve_next();
  void send(const Channel& to, protocol::FrameType type, std::uint64_t number = 0, Bytes payload = {},
            std::uint32_t aux = 0);
  void send_probes(const std::vector<Probe::Message>& messages);
  std::size_t flush();
  void opened(const Channel& channel);
  void forget(JobId job);

  const ClassId cls_;
  Time now_;
  std::vector<Member> members_;
  std::map<JobId, Job> jobs_;                            // by the id that the prober's flows have
  std::map<Channel, std::unique_ptr<Line>> lines_;       // flows that are up
  std::map<JobId, std::set<Channel>> open_;              // flows that are dialed or up, and not reported down
  std::vector<std::unique_ptr<Measurement>> measuring_;  // in their order
  std::optional<Run> run_;
  std::deque<Outcome> outcomes_;
  std::deque<Channel> asking_;  // of peers that want to measure; the first one does while served_until_ is set
  std::optional<Time> served_until_;
  std::map<std::pair<JobId, HostIndex>, std::vector<ports::PathCandidate>> reported_;  // by the real job
  std::map<Channel, std::vector<std::byte>> incoming_, outgoing_;                      // outcomes on their way
  std::deque<Message> outbox_;
  std::set<JobId> mapped_;
  std::unique_ptr<std::byte[]> memory_;  // payloads: what is sent, then where they land
  std::span<std::byte> landing_;         // that part of it
};

}  // namespace tensorlane::mixed
