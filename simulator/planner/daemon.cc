#include "simulator/planner/daemon.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/assert.h"
#include "daemon/host/host.h"
#include "daemon/ports/inline_executor.h"
#include "simulator/host/session.h"

namespace tensorlane::simulator {
namespace {

constexpr std::size_t kActionRing = 16;  // emptied after every step; a large one would leave the cache with every host
constexpr std::size_t kSlices = 1u << 24;

// Every region begins at the same address, where no program has memory: an access would end the program.
class BytelessMemory final : public ports::Memory, public ports::ScratchPool {
 public:
  std::span<std::byte> resolve(const Descriptor& d) override { return {nowhere() + d.offset, d.length}; }
  Descriptor add(std::span<std::byte> bytes) override { return region(bytes.size()); }
  void remove(std::uint32_t) override {}
  static Descriptor region(std::uint64_t bytes) { return {0, 1, 0, bytes}; }

  Result<std::unique_ptr<ports::Scratch>> make(const Owner&, std::uint64_t bytes) override {
    return std::unique_ptr<ports::Scratch>(std::make_unique<Lengths>(bytes));
  }
  Result<Ledger::Charge> charge(const Owner&, std::uint64_t) override { return Ledger::Charge(); }
  Status check(const Owner&, std::uint64_t) const override { return {}; }

 private:
  struct Lengths final : ports::Scratch {
    explicit Lengths(std::uint64_t bytes) : length(bytes) {}
    std::span<std::byte> bytes() const override { return {nowhere(), length}; }
    Result<bool> populate(std::uint64_t) override { return true; }
    std::uint64_t length;
  };
  static std::byte* nowhere() {
    return reinterpret_cast<std::byte*>(std::uintptr_t{1} << 52);  // NOLINT(performance-no-int-to-ptr): never accessed
  }
};

// The host's thread: arithmetic and copies move its time on, ahead of the virtual clock.
class TimedReducer final : public ports::Reducer {
 public:
  TimedReducer(const EventQueue& events, double bytes_per_second) : events_(events), rate_(bytes_per_second) {}
  Time now() const { return std::max(done_, events_.now()); }

  void reduce(std::byte*, Dtype, std::span<const ports::ReduceSource> sources, std::size_t elements, ReduceOp,
              double) override {
    std::uint64_t bytes = 0;
    for (const ports::ReduceSource& source : sources) bytes += elements * dtype_size(source.dtype);
    copy(nullptr, nullptr, bytes);
  }
  void copy(std::byte*, const std::byte*, std::size_t bytes) override {
    done_ = now() + Duration(static_cast<std::int64_t>(static_cast<double>(bytes) / rate_ * 1e9));
  }

 private:
  const EventQueue& events_;
  const double rate_;
  Time done_;
};

// Flows come up with the next poll(). Jobs are numbered from 1, alike on all hosts.
class FabricTransport final : public ports::Transport, public FabricSink {
 public:
  FabricTransport(HostIndex self, ports::FlowOwner& owner, const PlannedDaemon::Context& context,
                  std::function<void()> wake)
      : self_(self), owner_(owner), context_(context), wake_(std::move(wake)) {
    context_.network.attach(self, this);
  }

  void add_job(const ports::JobCredentials& credentials) override { jobs_ = credentials.job.value; }
  void remove_job(JobId) override {}
  Status connect(const ports::FlowKey& flow, const std::string&, std::uint16_t, Time) override {
    opened_.push_back(flow);
    context_.network.open(self_, flow.peer, job_of(flow), level_of(flow.cls));
    return {};
  }
  void close(const ports::FlowKey&) override {}
  Bytes in_flight(ClassId cls) override { return Bytes(in_flight_[level_of(cls)]); }
  std::size_t poll(Time) override {
    std::size_t handled = arrivals_.size();
    // A peer may have begun a job that this host has not.
    for (const ports::FlowKey& flow : std::exchange(opened_, {})) {
      if (flow.job.value <= jobs_) {
        Line& line = lines_.try_emplace(flow, *this, flow).first->second;
        line.sink = &owner_.on_flow_up(flow, line);
        ++handled;
      } else {
        opened_.push_back(flow);
      }
    }
    for (const auto& [message, acknowledged] : arrivals_) {
      const HostIndex peer = acknowledged ? message.to : message.from;
      ports::FrameSink& sink = *lines_.at({JobId(message.job + 1u), peer, class_of(message.level)}).sink;
      if (acknowledged) {
        sink.on_sent(message.token);
      } else if (sink.on_header(message.header).ok()) {
        sink.on_frame(message.header);
      }
    }
    arrivals_.clear();
    return handled;
  }
  int wake_fd() const override { return -1; }

  void on_opened(HostIndex from, std::uint8_t job, std::size_t level) override {
    opened_.push_back({JobId(job + 1u), from, class_of(level)});
    wake_();
  }
  void on_delivered(const Message& message) override {
    arrivals_.emplace_back(message, false);
    wake_();
  }
  void on_acknowledged(const Message& message) override {
    in_flight_[message.level] -= message.header.payload_bytes;
    if (message.token != 0) arrivals_.emplace_back(message, true);
    wake_();
  }

 private:
  // A flow that is up.
  class Line final : public ports::Flow {
   public:
    Line(FabricTransport& of, const ports::FlowKey& key) : of_(of), key_(key) {}
    bool writable() const override { return true; }
    void send(const ports::Outgoing& operation) override { of_.send(key_, operation); }
    ports::FlowStats stats() const override { return {}; }
    ports::FrameSink* sink = nullptr;

   private:
    FabricTransport& of_;
    const ports::FlowKey key_;
  };

  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) {
    const std::size_t level = level_of(flow.cls);
    in_flight_[level] += operation.header.payload_bytes;
    context_.network.send({.from = self_,
                           .to = flow.peer,
                           .level = static_cast<std::uint8_t>(level),
                           .job = job_of(flow),
                           .header = operation.header,
                           .token = operation.token});
  }
  static std::uint8_t job_of(const ports::FlowKey& flow) { return static_cast<std::uint8_t>(flow.job.value - 1); }

  const HostIndex self_;
  ports::FlowOwner& owner_;
  const PlannedDaemon::Context& context_;
  const std::function<void()> wake_;
  std::uint64_t jobs_ = 0;  // that have begun here
  std::vector<ports::FlowKey> opened_;
  std::map<ports::FlowKey, Line> lines_;
  std::vector<std::pair<Message, bool>> arrivals_;  // the message was this host's, and is acknowledged
  std::array<std::uint64_t, kLevels> in_flight_{};
};

class Daemon final : public PlannedDaemon, private ports::LaneListener {
 public:
  Daemon(HostIndex self, const Context& context, const HostOptions& options, const host::HostConfig& config)
      : self_(self),
        context_(context),
        options_(options),
        reducer_(context.events, options.sum_bytes_per_second),
        config_(config) {
    config_.rails = {{.windows = std::vector<Bytes>(config.classes, options.window), .control_limit = {}}};
    config_.max_queued_slices = kSlices;
    config_.actions = kActionRing;
    ports_ = {.memory = &memory_, .executor = &executor_, .metrics = &context.metrics, .timeline = &timeline_};
    ports_.scratch = &memory_;
    ports_.make_transport = [this](RailIndex, ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
      return std::unique_ptr<ports::Transport>(
          std::make_unique<FabricTransport>(self_, owner, context_, [this] { wake(); }));
    };
    Result<std::unique_ptr<host::Host>> made = host::Host::create(config_, ports_, [this] { return reducer_.now(); });
    TL_ASSERT(made.ok());
    host_ = std::move(*made);
    host_->report_to(*this);
  }

  Status add_job(protocol::Plan plan, std::function<void(TensorId)> completed) override {
    const auto spec = std::make_shared<const ports::JobSpec>(next_spec());
    std::vector<Descriptor> buffers;
    for (const protocol::PlanTensor& t : plan.tensors) buffers.push_back(BytelessMemory::region(t.bytes()));
    const auto start = std::make_shared<host::JobStart>(*spec, config_, ports_);
    host::PlanGrowth growth(std::move(plan), spec, ports_);
    while (!start->step() || !growth.step()) {
    }
    host_->begin(start);
    const Time now = context_.events.now();
    host_->receive(now);
    if (!failed_.ok()) return failed_;
    host::Job& job = *host_->find(spec->credentials.job);
    while (!job.grow(growth, now)) {
    }
    while (host_->receive(now) > 0) {  // until all flows that this host dials are up
    }
    add_ranks(job, buffers, completed);
    return failed_;
  }

  void submit(std::size_t job, TensorId tensor) override {
    const std::uint64_t sequence = ++jobs_[job].sequences[tensor.value];
    for (const auto& rank : jobs_[job].ranks) rank->submit({tensor.value, 0, sequence});
  }
  void boost(std::size_t job, TensorId tensor) override {
    jobs_[job].ranks.front()->submit({tensor.value, protocol::kFlagBoost, jobs_[job].sequences[tensor.value]});
  }

 private:
  struct Ranks {
    std::vector<std::shared_ptr<SimSession>> ranks;
    std::vector<std::uint64_t> sequences;  // by tensor
  };

  ports::JobSpec next_spec() const {
    ports::JobSpec spec;
    spec.name = "planned";
    spec.credentials.job = JobId(jobs_.size() + 1);
    spec.credentials.epoch = Epoch(1);
    spec.credentials.self = self_;
    spec.world_size = context_.hosts * options_.ranks;
    spec.hosts.resize(context_.hosts);
    for (std::uint32_t rank = 0; rank < spec.world_size; ++rank) {
      ports::JobHost& host = spec.hosts[rank / options_.ranks];
      host.name = std::to_string(rank / options_.ranks);
      host.addresses.resize(1);
      host.ranks.push_back(Rank(rank));
    }
    return spec;
  }

  // All ranks get their results at the same time, so the first one's are reported.
  void add_ranks(host::Job& job, const std::vector<Descriptor>& buffers,
                 const std::function<void(TensorId)>& completed) {
    Ranks& added = jobs_.emplace_back();
    added.sequences.resize(buffers.size());
    const auto submitted = [this] {
      submitted_ = true;
      wake();
    };
    for (std::uint32_t r = 0; r < options_.ranks; ++r) {
      const auto report = [completed, r](const protocol::CompletionEntry& entry) {
        if (r == 0) completed(TensorId(entry.tensor));
      };
      SimSession::Context context{context_.events, memory_, [this] { return reducer_.now(); }, submitted, report, {}};
      added.ranks.push_back(std::make_shared<SimSession>(std::move(context), buffers));
      const Rank rank(self_.value * options_.ranks + r);
      job.attach(rank, added.ranks.back());
      for (std::uint32_t t = 0; t < buffers.size(); ++t)
        job.bind(rank, TensorId(t), added.ranks.back()->place(TensorId(t)));
    }
  }

  void wake() {
    if (!scheduled_) turn_at(context_.events.now() + options_.wake);
  }
  void turn_at(Time when) {
    scheduled_ = true;
    context_.events.at(when, [this] {
      scheduled_ = false;
      turn();
    });
  }
  // As daemon/lane does it. While virtual time stands still nothing arrives, so another turn follows at once only if
  // this one has left something to do. A turn that has worked is followed by the next one when the work is done.
  void turn() {
    std::size_t sent = 0, worked = 0;
    do {
      host_->receive(context_.events.now());
      if (submitted_) submitted_ = host_->collect() > 0;
      if (submitted_) host_->submit([](const host::Job&) { return true; });
      sent = host_->send();
      worked = host_->work();
    } while (worked == 0 && (submitted_ || (sent > 0 && jobs_.size() > 1)));
    TL_ASSERT(failed_.ok());
    if (worked > 0) turn_at(reducer_.now());
  }

  // ---- ports::LaneListener ----
  void on_job_connected(JobId) override {}
  void on_job_failed(JobId, const Status& cause) override { failed_ = cause; }
  void on_job_closed(JobId) override {}

  const HostIndex self_;
  const Context context_;
  const HostOptions options_;
  BytelessMemory memory_;
  TimedReducer reducer_;
  ports::InlineExecutor executor_{reducer_};
  ports::NoTimeline timeline_;
  host::HostConfig config_;
  host::HostPorts ports_;
  std::vector<Ranks> jobs_;
  Status failed_;
  bool scheduled_ = false;
  bool submitted_ = false;  // by ranks, and not collected yet
  std::unique_ptr<host::Host> host_;
};

}  // namespace

std::unique_ptr<PlannedDaemon> PlannedDaemon::create(HostIndex self, const Context& context, const HostOptions& options,
                                                     const host::HostConfig& config) {
  return std::make_unique<Daemon>(self, context, options, config);
}

}  // namespace tensorlane::simulator
