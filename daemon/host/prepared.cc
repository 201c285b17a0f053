#include "daemon/host/prepared.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "common/protocol/exchange.h"
#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/engine.h"
#include "daemon/ports/reducer.h"

namespace tensorlane::host {
namespace {

constexpr std::uint64_t kPopulateAtOnce = std::uint64_t{4} << 20;  // some milliseconds
constexpr std::uint64_t kAlignment = 64;
// What the tables of a job hold for a tensor and for each of its slices, on one rail; measured, rounded up.
constexpr std::uint64_t kTensorBytes = 1792, kSliceBytes = 256;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Every rail has tables of all tensors, and of its own slices of each (law 12).
std::uint64_t table_bytes(std::uint64_t slices, const ports::JobSpec& spec) {
  if (spec.hosts.size() == 1) return kTensorBytes;
  return kTensorBytes * std::max<std::size_t>(spec.rails(), 1) + slices * kSliceBytes;
}

std::uint64_t slices_of(std::uint64_t elements, std::uint64_t slice_elements) {
  const std::uint64_t each = std::max<std::uint64_t>(slice_elements, 1);
  return (elements + each - 1) / each;
}

// What an exchange takes on this host.
struct ExchangeNeed {
  std::uint64_t slices = 0;
  std::uint64_t own_elements = 0;  // of a buffer of the daemon's own
};
ExchangeNeed exchange_need(const protocol::Exchange& exchange, std::uint64_t slice_elements, const Members& members) {
  const std::uint64_t ranks = members.here(), others = members.world_size() - ranks;
  const bool to_all = exchange.operation == Operation::kAlltoall;
  const bool has_root = !to_all && members.place_of_number(exchange.root).has_value();
  const std::uint64_t blocks = to_all ? 2 * ranks * others : has_root ? others : ranks;
  const bool own = members.between_hosts() && ranks > 1 && !has_root;
  return {blocks * slices_of(exchange.block(), slice_elements),
          own ? ranks * (to_all ? exchange.elements : exchange.block()) : 0};
}

}  // namespace

std::uint64_t vacant_table_bytes(std::uint64_t tensors, std::uint64_t slices, const ports::JobSpec& spec) {
  return tensors * table_bytes(0, spec) + slices * kSliceBytes;
}

Status no_memory() {
  return {Code::kResourceExhausted, "the daemon has no memory left for the tables of a job", "memory",
          "free memory on this host or register less"};
}

Status on_host(const Status& status, const ports::JobSpec& spec) {
  if (status.ok()) return {};
  return {
      status.code(), status.what(),
      fmt::format("{}: job '{}' on host {}", status.where(), spec.name, spec.hosts[spec.credentials.self.value].name),
      status.fix()};
}

// Staging and limits are those of a NIC, like windows (laws 8, 11).
engine::EngineConfig engine_config(RailIndex rail, const ports::JobSpec& spec, const HostConfig& config) {
  engine::EngineConfig e;
  e.job = spec.credentials.job;
  e.epoch = spec.credentials.epoch;
  e.hosts = static_cast<std::uint16_t>(spec.hosts.size());
  e.self = spec.credentials.self;
  e.world_size = spec.world_size;
  e.rails = static_cast<std::uint8_t>(spec.rails());
  e.rail = rail;
  e.classes = config.classes;
  e.staging = config.staging;
  e.eager_limit = config.eager_limit;
  e.eager_credits = config.eager_credits;
  e.eager_slots = config.eager_slots;
  e.max_queued_slices = config.max_queued_slices;
  e.single_queue = config.single_queue;
  e.reclassifies = config.tunes || config.observes;
  e.limits = config.job_limits;
  return e;
}

JobStart::JobStart(ports::JobSpec s, const HostConfig& config, const HostPorts& ports)
    : spec(std::move(s)),
      config_(config),
      host_rails_(spec.hosts.size() == 1 ? 0 : std::min(spec.rails(), config.rails.size())),
      ports_(ports) {}

Status JobStart::begin_rail() {
  const RailIndex rail(static_cast<std::uint8_t>(rails.size()));
  const Bytes bytes = engine::Engine::staging_bytes(engine_config(rail, spec, config_));
  RailStart start;
  TL_ASSIGN_OR_RETURN(start.staging, ports_.scratch->make(spec.owner, bytes.value));
  if (ports_.make_observer) start.observer = ports_.make_observer(spec, rail);
  rails.push_back(std::move(start));
  return {};
}

Status JobStart::make_desk() {
  const engine::MessagesConfig config = MessageDesk::config_of(spec, config_);
  const std::size_t slots = spec.hosts[spec.credentials.self.value].ranks.size() * protocol::kMessageSlots;
  const std::uint64_t bytes = MessageDesk::table_bytes(config).value + slots * sizeof(OpenMessage);
  TL_ASSIGN_OR_RETURN(message_tables, ports_.scratch->charge(spec.owner, bytes));
  try {
    messages.resize(slots);
    desk = std::make_unique<MessageDesk>(config, config_.job_limits);
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  return {};
}

bool JobStart::step() {
  if (!status.ok()) return true;
  if (const std::size_t ranks = spec.hosts[spec.credentials.self.value].ranks.size(); ranks > ports::kMaxLocalRanks) {
    status = on_host({Code::kResourceExhausted,
                      fmt::format("{} ranks on one host, a job has at most {}", ranks, ports::kMaxLocalRanks),
                      "local ranks", "start fewer processes on each host"},
                     spec);
    return true;
  }
  if (!rails.empty()) {
    const Result<bool> there = rails.back().staging->populate(kPopulateAtOnce);
    if (!there.ok()) status = on_host(there.status(), spec);
    if (!there.ok() || !*there) return !there.ok();
  } else if (ports_.regions != nullptr) {
    Result<Ledger::Charge> taken = ports_.regions->take(spec.owner, host_rails_);
    if (!taken.ok()) status = on_host(taken.status(), spec);
    if (!taken.ok()) return true;
    regions = std::move(*taken);
  }
  if (everyone == nullptr) everyone = std::make_shared<const Members>(spec, nullptr);
  if (config_.messages && desk == nullptr) {
    if (const Status made = make_desk(); !made.ok()) status = on_host(made, spec);
    if (!status.ok()) return true;
  }
  if (rails.size() == host_rails_) return true;
  if (const Status begun = begin_rail(); !begun.ok()) status = on_host(begun, spec);
  return !status.ok();
}

PlanGrowth::PlanGrowth(protocol::Plan a, std::shared_ptr<const ports::JobSpec> spec, const HostPorts& ports)
    : added(std::move(a)), spec_(std::move(spec)), ports_(ports) {}

// One piece of memory for all of it: transports register and look up pieces.
Status PlanGrowth::begin() {
  const auto hosts = static_cast<std::uint16_t>(spec_->hosts.size());
  std::uint64_t bytes = 0, entries = 0, in_tables = 0;
  places_.resize(added.tensors.size());
  // Whoever registers together is of one world.
  const protocol::SharedWorld world = added.tensors.empty() ? nullptr : added.tensors.front().world;
  const auto among = std::make_shared<const Members>(*spec_, world);
  if (world != nullptr) members = among;
  for (std::size_t i = 0; i < added.tensors.size(); ++i) {
    const protocol::PlanTensor& tensor = added.tensors[i];
    Place& place = places_[i];
    ++entries;
    if (among->here() == 0) {
      in_tables += table_bytes(0, *spec_);
      continue;
    }
    ExchangeNeed exchange;
    if (exchanges(tensor.operation))
      exchange = exchange_need(protocol::exchange_of(tensor, among->world_size()), tensor.slice_elements, *among);
    const std::uint64_t own_slices = tensor.in_batch() ? 0 : slices_of(tensor.elements, tensor.slice_elements);
    in_tables += table_bytes(exchanges(tensor.operation) ? exchange.slices : own_slices, *spec_);
    if (!among->between_hosts() || tensor.in_batch() || tensor.operation == Operation::kBarrier) continue;
    if (tensor.is_batch()) place.storage_bytes = tensor.bytes();
    if (exchange.own_elements > 0) place.storage_bytes = exchange.own_elements * dtype_size(tensor.dtype);
    place.storage = bytes;
    bytes += aligned(place.storage_bytes);
    if (!engine::needs_fp32_scratch(tensor, hosts)) continue;
    ++entries;
    place.wide_bytes = tensor.elements * sizeof(float);
    place.wide = bytes;
    bytes += aligned(place.wide_bytes);
  }
  if (ports_.regions != nullptr) {
    TL_ASSIGN_OR_RETURN(memory.regions, ports_.regions->take(spec_->owner, entries));
  }
  TL_ASSIGN_OR_RETURN(memory.tables, ports_.scratch->charge(spec_->owner, in_tables));
  if (bytes == 0) return {};
  TL_ASSIGN_OR_RETURN(memory.scratch, ports_.scratch->make(spec_->owner, bytes));
  bytes_ = memory.scratch->bytes();
  return {};
}

bool PlanGrowth::step() {
  if (!status.ok()) return true;
  if (!begun_) {
    begun_ = true;
    Status begun;
    try {
      begun = begin();
    } catch (const std::bad_alloc&) {
      begun = no_memory();
    }
    if (!begun.ok()) status = on_host(begun, *spec_);
    if (!begun.ok() || memory.scratch == nullptr) return true;
  }
  if (memory.scratch == nullptr) return true;
  const Result<bool> there = memory.scratch->populate(kPopulateAtOnce);
  if (!there.ok()) status = on_host(there.status(), *spec_);
  return !there.ok() || *there;
}

// Slices are counted as if they were as small as they can become. Batches are left out: they are of small tensors, and
// what they take is charged once they are planned.
Need need_of(std::span<const protocol::TensorBody> tensors, const ports::JobSpec& spec) {
  const Members among(spec, nullptr);
  Need need;
  for (const protocol::TensorBody& tensor : tensors) {
    const bool wide = among.between_hosts() && reduces(tensor.operation) && dtype_size(tensor.dtype) == 2;
    need.regions += wide ? 2 : 1;
    const std::uint64_t smallest = engine::smallest_slice_elements(tensor.dtype);
    if (exchanges(tensor.operation)) {
      const ExchangeNeed exchange =
          exchange_need({tensor.operation, tensor.elements, among.world_size(), tensor.root}, smallest, among);
      need.bytes += table_bytes(exchange.slices, spec) + exchange.own_elements * dtype_size(tensor.dtype);
      continue;
    }
    need.bytes +=
        table_bytes(slices_of(tensor.elements, smallest), spec) + (wide ? tensor.elements * sizeof(float) : 0);
  }
  return need;
}

}  // namespace tensorlane::host
