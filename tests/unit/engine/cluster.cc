#include "cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "arithmetic.h"

namespace tensorlane::engine::testing {

std::span<std::byte> Host::at(const Descriptor& d) {
  EXPECT_LT(d.region, regions.size());
  EXPECT_LE(d.offset + d.length, regions[d.region].size);
  return regions[d.region].all().subspan(d.offset, d.length);
}

// Regions: 0 staging, then a buffer and a scratch per tensor.
Cluster::Cluster(const ClusterOptions& options, const Plan& plan)
    : plan_(plan),
      in_parts_(options.in_parts),
      hosts_(options.hosts),
      bytes_sent_(options.hosts),
      random_(options.seed) {
  for (std::uint16_t h = 0; h < options.hosts; ++h) {
    EngineConfig config = options.config;
    config.hosts = options.hosts;
    config.self = HostIndex(h);
    config.world_size = options.world_size > 0 ? options.world_size : options.hosts * options.ranks_per_host;
    Host& host = hosts_[h];
    const std::uint64_t staging = Engine::staging_bytes(config).value;
    host.regions.emplace_back(staging);
    for (const PlanTensor& t : plan.tensors) add_buffers(host, t, host.regions.size());
    host.engine = std::make_unique<Engine>(config, Descriptor{0, 0, 0, staging});
    const Status status = host.engine->apply_plan(plan);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  connect();
}

// The flows that the plan has come to need are up, and everybody knows what slots it is lent.
void Cluster::connect() {
  for (std::uint16_t h = 0; h < hosts(); ++h) {
    Host& host = hosts_[h];
    const std::vector<HostIndex> neighbours(host.engine->neighbours().begin(), host.engine->neighbours().end());
    for (; host.neighbours < neighbours.size(); ++host.neighbours) {
      const HostIndex peer = neighbours[host.neighbours];
      feed(h, {.kind = Event::Kind::kPeerUp, .up = {peer}});
      step(h);
      Send credit;
      if (host.engine->pick(Time(now_), {peer, kControlClass}, Bytes(0), std::span(&credit, 1)) == 0) continue;
      feed(peer.value, {.kind = Event::Kind::kFrameArrived, .frame = {HostIndex(h), credit.header}});
      step(peer.value);
    }
  }
}

void Cluster::add_buffers(Host& host, const PlanTensor& tensor, std::size_t region) {
  const bool barrier = tensor.operation == Operation::kBarrier;
  Region buffer(barrier ? 0 : buffer_bytes(plan_, tensor, HostIndex(static_cast<std::uint16_t>(&host - &hosts_[0]))));
  Region fp32_scratch(needs_fp32_scratch(tensor, hosts()) ? tensor.elements * sizeof(float) : 0);
  while (host.regions.size() < region + 2) host.regions.emplace_back(0);
  host.regions[region] = std::move(buffer);
  host.regions[region + 1] = std::move(fp32_scratch);
}

Status Cluster::vacate(protocol::TensorRange range) {
  for (Host& host : hosts_) TL_RETURN_IF_ERROR(host.engine->vacate(range));
  plan_.vacate(range);
  return {};
}

// Hosts that had no part in what was there before go on from where the others have come to.
Status Cluster::place(protocol::TensorRange range, std::vector<PlanTensor> tensors) {
  for (std::uint32_t i = range.first; i < range.end(); ++i) {
    std::uint64_t& base = tensors[i - range.first].base;
    for (Host& host : hosts_) base = std::max(base, host.done[i]);
    for (Host& host : hosts_) host.done[i] = base;
  }
  plan_.place(range, std::move(tensors));
  for (Host& host : hosts_) {
    for (std::uint32_t i = range.first; i < range.end(); ++i) add_buffers(host, plan_.tensors[i], 1 + i * 2);
    TL_RETURN_IF_ERROR(host.engine->extend_plan(plan_, range));
  }
  connect();
  return {};
}

std::span<std::byte> Cluster::buffer(std::size_t host, TensorId tensor) {
  return hosts_[host].regions[1 + tensor.value * 2].all();
}
std::span<std::byte> Cluster::fp32_scratch(std::size_t host, TensorId tensor) {
  return hosts_[host].regions[2 + tensor.value * 2].all();
}

void Cluster::submit_all(int times) {
  for (Host& host : hosts_) {
    for (int i = 0; i < times; ++i) {
      std::vector<TensorId> ids;
      for (const PlanTensor& t : plan_.tensors) {
        const HostIndex self(static_cast<std::uint16_t>(&host - &hosts_[0]));
        if (!t.vacant && (t.world == nullptr || t.world->place_of(self))) ids.push_back(t.id);
      }
      std::ranges::shuffle(ids, random_);
      host.to_submit.insert(host.to_submit.end(), ids.begin(), ids.end());
    }
  }
}

bool Cluster::submit_next(std::size_t h) {
  Host& host = hosts_[h];
  if (host.to_submit.empty() || host.running.contains(host.to_submit.front().value)) return false;
  const TensorId tensor = host.to_submit.front();
  host.to_submit.erase(host.to_submit.begin());
  const Sequence sequence(host.done[tensor.value] + host.failed[tensor.value] + 1);
  host.running[tensor.value] = sequence;
  if (fill) fill(h, tensor, sequence);
  const std::uint32_t region = 1 + tensor.value * 2;
  Event event{.kind = Event::Kind::kTensorReady};
  event.tensor_ready = {
      tensor, sequence, {region, 0, 0, host.regions[region].size}, {region + 1, 0, 0, host.regions[region + 1].size}};
  const Operation operation = plan_.tensors[tensor.value].operation;
  const bool has_parts = operation != Operation::kBarrier && !exchanges(operation);
  event.tensor_ready.in_parts = has_parts && in_parts_ > static_cast<int>(draw(4));
  if (event.tensor_ready.in_parts) begin_in_parts(h, event.tensor_ready);
  host.events.push_back(event);
  if (draw(2) == 0) step(h);
  return true;
}

constexpr std::byte kRubbish{0x5a};

// One to six parts, of which nothing exists yet.
void Cluster::begin_in_parts(std::size_t h, const TensorReady& ready) {
  Host& host = hosts_[h];
  const PlanTensor& t = plan_.tensors[ready.tensor.value];
  Host::InParts& parts = host.in_parts[ready.tensor.value];
  parts = {.sequence = ready.sequence};
  std::vector<std::uint64_t> cuts{0, t.elements};
  for (std::size_t i = draw(6); i > 0; --i) cuts.push_back(draw(t.elements));
  std::ranges::sort(cuts);
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i - 1] < cuts[i]) parts.missing.emplace_back(cuts[i - 1], cuts[i]);
  }
  const std::span<std::byte> buffer = host.at(ready.buffer);
  parts.buffer.assign(buffer.begin(), buffer.end());
  std::ranges::fill(buffer, kRubbish);
  if (!t.fp32_contributions) return;
  const std::span<std::byte> scratch = host.at(ready.fp32_scratch);
  parts.fp32_scratch.assign(scratch.begin(), scratch.end());
  std::ranges::fill(scratch, kRubbish);
}

// Another part of some contribution comes to exist. Nothing has touched it before, unless results may land there.
bool Cluster::part_something(std::size_t h) {
  Host& host = hosts_[h];
  std::vector<std::uint32_t> unfinished;
  for (const auto& [tensor, parts] : host.in_parts) {
    if (!parts.missing.empty()) unfinished.push_back(tensor);
  }
  if (unfinished.empty()) return false;
  const std::uint32_t tensor = unfinished[draw(unfinished.size())];
  Host::InParts& parts = host.in_parts[tensor];
  const auto which = parts.missing.begin() + static_cast<std::ptrdiff_t>(draw(parts.missing.size()));
  const auto [begin, end] = *which;
  parts.missing.erase(which);
  const PlanTensor& t = plan_.tensors[tensor];
  const auto restore = [&, from = begin, to = end](std::span<std::byte> now, const std::vector<std::byte>& filled) {
    const std::size_t size = filled.size() / t.elements;
    for (std::size_t i = from * size; i < to * size; ++i) {
      if (reduces(t.operation)) {
        EXPECT_EQ(now[i], kRubbish) << "tensor " << tensor << ", byte " << i;
      }
      if (now[i] == kRubbish) now[i] = filled[i];
    }
  };
  restore(buffer(h, t.id), parts.buffer);
  if (!parts.fp32_scratch.empty()) restore(fp32_scratch(h, t.id), parts.fp32_scratch);
  host.events.push_back({.kind = Event::Kind::kPartReady, .part_ready = {t.id, parts.sequence, begin, end - begin}});
  return true;
}

// What the engine has said to be in place is the result's.
void Cluster::check_in_place(std::size_t h, const Complete& complete) {
  const auto found = hosts_[h].in_parts.find(complete.tensor.value);
  if (found == hosts_[h].in_parts.end()) return;
  if (complete.ok) {
    for (const auto& [place, bytes] : found->second.in_place)
      EXPECT_TRUE(std::ranges::equal(hosts_[h].at(place), bytes))
          << "tensor " << complete.tensor.value << " was changed";
  }
  parts_told_ += found->second.in_place.size();
  hosts_[h].in_parts.erase(found);
}

void Cluster::step(std::size_t h) {
  Host& host = hosts_[h];
  std::vector<Event> events;
  events.swap(host.events);
  std::span<const Event> rest = events;
  while (!rest.empty()) {
    rest = rest.subspan(host.engine->step(Time(now_), rest, host.actions));
    while (!host.actions.empty()) {
      const Action action = host.actions.front();
      host.actions.pop();
      handle(h, action);
    }
  }
}

void Cluster::handle(std::size_t h, const Action& action) {
  Host& host = hosts_[h];
  if (action.kind == Action::Kind::kProtocolError) {
    host.errors.emplace_back(action.error.reason);
    return;
  }
  if (action.kind == Action::Kind::kPartInPlace) {
    const PartInPlace& part = action.in_place;
    Host::InParts& parts = host.in_parts.at(part.tensor.value);
    EXPECT_EQ(parts.sequence, part.sequence);
    const std::uint64_t size = dtype_size(plan_.tensors[part.tensor.value].dtype);
    const Descriptor place{1 + part.tensor.value * 2, 0, part.offset * size, part.elements * size};
    const std::span<std::byte> bytes = host.at(place);
    parts.in_place.emplace_back(place, std::vector(bytes.begin(), bytes.end()));
    return;
  }
  const Complete& c = action.complete;
  check_in_place(h, c);
  EXPECT_EQ(host.running.at(c.tensor.value), c.sequence);
  host.running.erase(c.tensor.value);
  ++(c.ok ? host.done : host.failed)[c.tensor.value];
  if (c.ok && check) check(h, c.tensor, c.sequence);
}

bool Cluster::pick_something(std::size_t h) {
  Host& host = hosts_[h];
  const bool control = draw(2) == 0;
  const ClassId cls = control ? kControlClass : ClassId(static_cast<std::uint8_t>(draw(2)));
  HostIndex peer;
  if (!host.engine->next_flow(Time(now_), cls, HostIndex(static_cast<std::uint16_t>(draw(hosts_.size()))), &peer))
    return false;
  EXPECT_TRUE(host.engine->has_sends(Time(now_), Flow{peer, cls}));
  std::array<Send, 4> sends;
  const std::size_t n =
      host.engine->pick(Time(now_), {peer, cls}, kMaxOperation * (1 + draw(4)), std::span(sends).first(1 + draw(4)));
  EXPECT_GT(n, 0u);
  for (std::size_t i = 0; i < n; ++i) {
    bytes_sent_[h] += sends[i].header.payload_bytes;
    EXPECT_EQ(sends[i].header.payload_bytes, sends[i].payload.length);
    if (on_send) on_send(HostIndex(static_cast<std::uint16_t>(h)), peer, sends[i]);
    wires_[{static_cast<std::uint16_t>(h), Flow{peer, cls}}].push_back(
        {sends[i], HostIndex(static_cast<std::uint16_t>(h))});
  }
  return true;
}

// The payload is read when it lands, not when it was picked: a buffer that changes before SendDone shows.
void Cluster::land(std::size_t to, const Packet& packet) {
  const Send& s = packet.send;
  if (s.header.payload_bytes > 0) {
    const Result<Descriptor> place = hosts_[to].engine->landing(packet.from, s.header);
    if (!place.ok()) {
      hosts_[to].errors.push_back(place.status().what());
      return;
    }
    if (place->length > 0) {
      EXPECT_EQ(place->length, s.header.payload_bytes);
      std::ranges::copy(hosts_[packet.from.value].at(s.payload), hosts_[to].at(*place).begin());
    }
  }
  Event event{.kind = Event::Kind::kFrameArrived};
  event.frame = {packet.from, s.header};
  hosts_[to].events.push_back(event);
  if (s.token != 0) hosts_[packet.from.value].events.push_back({.kind = Event::Kind::kSendDone, .token = s.token});
}

bool Cluster::deliver_something(std::size_t h) {
  std::vector<std::deque<Packet>*> arriving;
  for (auto& [key, wire] : wires_) {
    if (key.second.peer.value == h && !wire.empty()) arriving.push_back(&wire);
  }
  if (arriving.empty()) return false;
  for (std::size_t n = 1 + draw(4); n > 0; --n) {
    std::deque<Packet>& wire = *arriving[draw(arriving.size())];
    if (wire.empty()) continue;
    const Packet packet = wire.front();
    wire.pop_front();
    land(h, packet);
  }
  return true;
}

bool Cluster::work_something(std::size_t h) {
  Host& host = hosts_[h];
  Work work;
  if (draw(2) == 0 && host.engine->pick_work(Time(now_), &work)) {
    host.work.push_back(work);
    return true;
  }
  if (host.work.empty()) return false;
  const std::size_t which = draw(host.work.size());
  work = host.work[which];
  host.work.erase(host.work.begin() + static_cast<std::ptrdiff_t>(which));
  EXPECT_LE(work.elements * dtype_size(work.out_dtype), kMaxOperation.value);
  std::uint64_t read = 0;
  for (std::uint32_t i = 0; i < work.source_count; ++i) read += work.elements * dtype_size(work.sources[i].dtype);
  EXPECT_LE(read, 4 * kMaxOperation.value);
  const Dtype accumulates =
      is_integer(work.out_dtype) || work.out_dtype == Dtype::kFloat64 ? work.out_dtype : Dtype::kFloat32;
  std::vector<double> terms(work.source_count);
  for (std::uint64_t e = 0; e < work.elements; ++e) {
    for (std::uint32_t i = 0; i < work.source_count; ++i) {
      const Work::Source& s = work.sources[i];
      terms[i] = load(host.at(s.data).data() + e * dtype_size(s.dtype), s.dtype);
    }
    store(host.at(work.out).data() + e * dtype_size(work.out_dtype), work.out_dtype,
          reduce(terms, accumulates, work.op, work.divisor));
  }
  host.events.push_back({.kind = Event::Kind::kWorkDone, .token = work.token});
  return true;
}

bool Cluster::tick() {
  ++now_;
  const std::size_t first = draw(hosts_.size());
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const std::size_t h = (first + i) % hosts_.size();
    const std::size_t kinds = in_parts_ > 0 ? 6 : 5, kind = draw(kinds);
    for (std::size_t k = 0; k < kinds; ++k) {
      bool did = false;
      switch ((kind + k) % kinds) {
        case 0:
          did = submit_next(h);
          break;
        case 1:
          did = pick_something(h);
          break;
        case 2:
          did = deliver_something(h);
          break;
        case 3:
          did = work_something(h);
          break;
        case 4:
          did = !hosts_[h].events.empty();
          step(h);
          break;
        case 5:
          did = part_something(h);
          break;
      }
      if (did) return true;
    }
  }
  return false;
}

bool Cluster::run(std::size_t most) {
  // A tick that draws badly (a class with nothing, no work) says nothing: only many in a row say that nothing moves.
  std::size_t idle = 0;
  for (std::size_t i = 0; i < most; ++i) {
    idle = tick() ? 0 : idle + 1;
    if (idle > 40) return true;
  }
  return false;
}

bool Cluster::all_done() const {
  return std::ranges::all_of(
      hosts_, [](const Host& h) { return h.running.empty() && h.to_submit.empty() && h.errors.empty(); });
}

std::uint64_t Cluster::digest() const {
  std::uint64_t all = 0;
  for (const Host& host : hosts_) all = all * 31 + host.engine->digest();
  return all;
}

Plan plan_of(const PlanTensor& tensor) {
  Plan plan;
  add(&plan, tensor);
  return plan;
}

void add(Plan* plan, PlanTensor tensor) {
  tensor.id = TensorId(static_cast<std::uint32_t>(plan->tensors.size()));
  tensor.name = std::to_string(tensor.id.value);
  plan->tensors.push_back(tensor);
}

PlanTensor allreduce(Pattern pattern, Dtype dtype, std::uint64_t elements, std::uint32_t slice_elements) {
  return {.operation = Operation::kAllreduce,
          .reduce = ReduceOp::kSum,
          .dtype = dtype,
          .pattern = pattern,
          .urgency = 0.5F,
          .elements = elements,
          .slice_elements = slice_elements};
}

}  // namespace tensorlane::engine::testing
