#include "simulator/checkers/choice.h"

#include <algorithm>

#include "daemon/engine/pattern/rails.h"
#include "simulator/workload/values.h"

namespace tensorlane::simulator {

using engine::Event;
using protocol::FrameHeader;
using protocol::FrameType;

namespace {

// A block of arithmetic has at most this many sources, and each further pass one less, since it begins with the sum so
// far.
std::uint64_t passes(std::size_t contributions) {
  constexpr std::size_t kMost = engine::Work::kMaxSources;
  return contributions <= kMost ? 1 : 1 + (contributions - 2) / (kMost - 1);
}

}  // namespace

ChoiceChecker::ChoiceChecker(HostIndex host, RailIndex rail, const Scenario& scenario, const Urgencies& urgencies,
                             Findings& findings)
    : host_(host), rail_(rail), scenario_(scenario), urgencies_(urgencies), findings_(findings) {
  if (scenario.engine.single_queue || scenario.hosts() == 1) return;
  for (const protocol::PlanTensor& planned : scenario.plan.tensors) {
    tensors_.emplace_back();
    const bool summed = sums(planned) || planned.operation == Operation::kBarrier;
    if (summed) add_slices(planned);
  }
}

void ChoiceChecker::add_slices(const protocol::PlanTensor& planned) {
  Tensor& tensor = tensors_.back();
  const TensorWorld world = scenario_.world_of(planned);
  if (!world.place_of(host_) || world.hosts() == 1) return;
  const engine::RailSlices mine = engine::rail_slices(planned.id, world.hosts(), rail_, scenario_.rails());
  tensor.first = mine.first;
  tensor.element_bytes = dtype_size(planned.dtype);
  const std::vector<PlannedSlice> all = planned_slices(planned, world.rank_hosts(), world.hosts());
  for (std::uint32_t number = 0; number < all.size(); ++number) {
    if (!mine.has(number)) continue;
    Slice& slice = tensor.slices.emplace_back();
    slice.offset = all[number].offset;
    slice.elements = all[number].elements;
    add_sources(planned, world, all[number].owner, &slice);
    const auto index = static_cast<std::uint32_t>(tensor.slices.size() - 1);
    for (std::uint32_t s = 0; s < slice.sources.size(); ++s) {
      if (slice.sources[s].leaf) tensor.leaves[slice.sources[s].peer].emplace_back(index, s);
    }
  }
}

void ChoiceChecker::add_sources(const protocol::PlanTensor& planned, const TensorWorld& world, HostIndex owner,
                                Slice* slice) const {
  const std::vector<Passing> list = passings(planned.pattern, world.hosts(), owner);
  for (const Passing& p : list) {
    if (world.host(p.to) != host_) continue;
    const bool leaf = std::ranges::count(list, p.from, &Passing::to) == 0;
    const std::uint64_t bytes = slice->elements * contribution_element_bytes(planned, leaf);
    const std::uint64_t operations = (bytes + kMaxOperation.value - 1) / kMaxOperation.value;
    slice->sources.push_back(
        {.peer = world.host(p.from), .leaf = leaf, .operations = static_cast<std::uint32_t>(operations)});
  }
}

// Of this rail, and summed here; else null.
ChoiceChecker::Slice* ChoiceChecker::find(const FrameHeader& h) {
  if (h.tensor.value >= tensors_.size()) return nullptr;
  Tensor& tensor = tensors_[h.tensor.value];
  const std::uint32_t index = h.slice / scenario_.rails();
  if (h.slice % scenario_.rails() != tensor.first || index >= tensor.slices.size()) return nullptr;
  return &tensor.slices[index];
}

ChoiceChecker::Source* ChoiceChecker::find(Slice& slice, HostIndex peer) {
  const auto found = std::ranges::find(slice.sources, peer, &Source::peer);
  return found == slice.sources.end() ? nullptr : &*found;
}

void ChoiceChecker::stepped(Time now, const Event& event, std::optional<TensorId> boosted) {
  if (tensors_.empty()) return;
  if (event.kind == Event::Kind::kTensorReady) begin(now, event.tensor_ready);
  if (event.kind == Event::Kind::kPartReady) part_exists(now, event.part_ready);
  if (event.kind == Event::Kind::kFrameArrived) arrived(now, event.frame.peer, event.frame.header);
  if (event.kind == Event::Kind::kWorkDone) worked(now, event.token);
  if (!boosted) return;
  for (const Slice& slice : tensors_[boosted->value].slices) {
    if (slice.wait != kNone) waits_[slice.wait].boosted = now;
  }
  const Urgency to = urgencies_.of(*boosted, true);
  Urgency from = to;
  from.unboosted = true;
  const auto found = ready_.find({urgencies_.cls(*boosted), from});
  if (found == ready_.end()) return;
  ready_[{urgencies_.cls(*boosted), to}] += found->second;
  ready_.erase(found);
}

void ChoiceChecker::begin(Time now, const engine::TensorReady& ready) {
  Tensor& tensor = tensors_[ready.tensor.value];
  tensor.buffer = ready.buffer;
  tensor.fp32_scratch = ready.fp32_scratch;
  tensor.tokens.clear();
  for (Slice& slice : tensor.slices) {
    slice.ready = false;
    slice.wait = kNone;
    const auto is_announced = [&](const Source& s) {
      return s.announced[ready.sequence.value % 2] == ready.sequence.value;
    };
    slice.missing =
        static_cast<std::uint32_t>(slice.sources.size() - std::ranges::count_if(slice.sources, is_announced));
    slice.own_missing = ready.in_parts ? slice.elements : 0;
    if (slice.sources.empty()) continue;
    if (slice.own_missing > 0) ++slice.missing;
    if (slice.missing == 0) all_announced(now, ready.tensor, slice);
  }
}

void ChoiceChecker::part_exists(Time now, const engine::PartReady& part) {
  const std::uint64_t end = part.offset + part.elements;
  for (Slice& slice : tensors_[part.tensor.value].slices) {
    const std::uint64_t from = std::max(part.offset, slice.offset), to = std::min(end, slice.offset + slice.elements);
    if (from >= to || slice.own_missing == 0) continue;
    slice.own_missing -= std::min(slice.own_missing, to - from);
    if (slice.own_missing > 0 || slice.sources.empty()) continue;
    if (--slice.missing == 0) all_announced(now, part.tensor, slice);
  }
}

void ChoiceChecker::arrived(Time now, HostIndex peer, const FrameHeader& h) {
  if (h.tensor.value >= tensors_.size()) return;
  Tensor& tensor = tensors_[h.tensor.value];
  if (h.type == FrameType::kReady) {
    const auto leaves = tensor.leaves.find(peer);
    if (leaves == tensor.leaves.end() || (h.flags & protocol::kFlagInParts) != 0) return;
    for (const auto& [slice, source] : leaves->second)
      announced(now, h.tensor, h.sequence.value, tensor.slices[slice], tensor.slices[slice].sources[source]);
    return;
  }
  Slice* slice = find(h);
  Source* source = slice == nullptr ? nullptr : find(*slice, peer);
  if (source == nullptr) return;
  if (h.type == FrameType::kRts) return announced(now, h.tensor, h.sequence.value, *slice, *source);
  if (h.type != FrameType::kData) return;
  if ((h.flags & protocol::kFlagEager) == 0) return landed(peer, h);
  source->eager[h.sequence.value % 2] = h.sequence.value;
  announced(now, h.tensor, h.sequence.value, *slice, *source);
}

void ChoiceChecker::announced(Time now, TensorId tensor, std::uint64_t sequence, Slice& slice, Source& source) {
  source.announced[sequence % 2] = sequence;
  if (!urgencies_.open(tensor) || urgencies_.sequence(tensor) != sequence || slice.missing == 0) return;
  if (--slice.missing == 0) all_announced(now, tensor, slice);
}

void ChoiceChecker::all_announced(Time now, TensorId tensor, Slice& slice) {
  const std::uint64_t sequence = urgencies_.sequence(tensor);
  for (Source& source : slice.sources) {
    source.grant = source.arrived = 0;
    if (source.eager[sequence % 2] != sequence) ++slice.missing;
  }
  if (slice.missing == 0) return make_ready(tensor, slice);
  slice.wait = waits_.size();
  Urgency urgency = urgencies_.of(tensor, true);
  urgency.unboosted = true;
  waits_.push_back({urgencies_.cls(tensor), urgency, urgencies_.boosted(tensor), now, {}, {}});
}

void ChoiceChecker::landed(HostIndex peer, const FrameHeader& h) {
  Slice& slice = *find(h);
  Source& source = *find(slice, peer);
  if (source.grant == 0 || source.grant != h.grant || ++source.arrived < source.operations) return;
  source.grant = 0;
  if (--slice.missing == 0) make_ready(h.tensor, slice);
}

void ChoiceChecker::make_ready(TensorId tensor, Slice& slice) {
  slice.ready = true;
  slice.left = slice.elements * passes(slice.sources.size() + 1);
  ++ready_[{urgencies_.cls(tensor), urgencies_.of(tensor, true)}];
}

void ChoiceChecker::picked(engine::Flow flow, std::span<const engine::Send> sends) {
  if (tensors_.empty()) return;
  for (const engine::Send& send : sends) {
    Slice* slice = find(send.header);
    const bool gives = send.header.type == FrameType::kRts || send.header.type == FrameType::kData;
    if (gives && slice != nullptr && slice->own_missing > 0) {
      return findings_.fail("choice", "host {} gives host {} slice {} of tensor {}, of which {} elements do not exist",
                            host_.value, flow.peer.value, send.header.slice, send.header.tensor.value,
                            slice->own_missing);
    }
    if (send.header.type != FrameType::kGrant) continue;
    Source* source = slice == nullptr ? nullptr : find(*slice, flow.peer);
    if (source == nullptr || slice->wait == kNone) {
      return findings_.fail("choice", "host {} grants slice {} of tensor {} to host {}, whose turn it is not",
                            host_.value, send.header.slice, send.header.tensor.value, flow.peer.value);
    }
    source->grant = send.header.grant;
    waits_[slice->wait].granted = send.eligible;
  }
}

// ---- work ----

std::optional<ClassId> ChoiceChecker::next_work() const {
  return ready_.empty() ? std::nullopt : std::optional(ready_.begin()->first.first);
}

// By where its bytes lie in the tensor; a pass in between may touch none of them.
ChoiceChecker::Slice* ChoiceChecker::slice_of(Tensor& tensor, const engine::Work& work) {
  const auto element = [&](const Descriptor& d, const Descriptor& whole,
                           std::size_t size) -> std::optional<std::uint64_t> {
    const bool inside = d.region == whole.region && d.offset >= whole.offset && d.offset < whole.offset + whole.length;
    return inside ? std::optional((d.offset - whole.offset) / size) : std::nullopt;
  };
  if (tensor.buffer.length == 0) return tensor.slices.empty() ? nullptr : &tensor.slices.front();  // a barrier's
  const auto place = [&](const Descriptor& d) {
    const auto at = element(d, tensor.buffer, tensor.element_bytes);
    return at ? at : element(d, tensor.fp32_scratch, sizeof(float));
  };
  std::optional<std::uint64_t> at = place(work.out);
  for (std::uint32_t i = 0; i < work.source_count && !at; ++i) at = place(work.sources[i].data);
  if (!at) {
    const auto known = tensor.tokens.find(work.token);
    return known == tensor.tokens.end() ? nullptr : &tensor.slices[known->second];
  }
  const auto behind = std::ranges::upper_bound(tensor.slices, *at, {}, &Slice::offset);
  if (behind == tensor.slices.begin()) return nullptr;
  tensor.tokens[work.token] = static_cast<std::uint32_t>(behind - tensor.slices.begin() - 1);
  return &*std::prev(behind);
}

void ChoiceChecker::working(const engine::Work& work) {
  if (tensors_.empty()) return;
  Slice* slice = slice_of(tensors_[work.tensor.value], work);
  if (slice == nullptr || !slice->ready) {
    return findings_.fail("choice", "host {} sums tensor {}, sequence {}, before all contributions have come",
                          host_.value, work.tensor.value, work.sequence.value);
  }
  const Ready mine{urgencies_.cls(work.tensor), urgencies_.of(work.tensor, true)};
  if (const Ready& best = ready_.begin()->first; best != mine) {
    findings_.fail("choice", "host {} sums tensor {} of class {} while tensor {} of class {}{} waits to be summed",
                   host_.value, work.tensor.value, mine.first.value, best.second.tensor, best.first.value,
                   best.second.unboosted ? "" : ", which is waited for,");
  }
  slice->left -= std::min(slice->left, work.elements);
  UnderWay& under_way = under_way_[work.token];
  under_way.tensor = work.tensor;
  under_way.slice = slice;
  ++under_way.blocks;
  // Blocks of a pass wait for those of the pass before.
  if (slice->left > 0 && passes(slice->sources.size() + 1) == 1) return;
  slice->ready = false;
  if (const auto entry = ready_.find(mine); --entry->second == 0) ready_.erase(entry);
}

// What comes after an abort is of no interest.
void ChoiceChecker::worked(Time now, std::uint64_t token) {
  const auto found = under_way_.find(token);
  if (found == under_way_.end()) return;
  const auto [tensor, slice, blocks] = found->second;
  if (--found->second.blocks > 0) return;
  under_way_.erase(found);
  if (slice->left == 0) {
    if (slice->wait != kNone) waits_[slice->wait].done = now;
  } else if (!slice->ready) {
    slice->ready = true;
    ++ready_[{urgencies_.cls(tensor), urgencies_.of(tensor, true)}];
  }
}

// ---- grants ----

void ChoiceChecker::check_grants() {
  for (std::uint8_t c = 0; c < scenario_.engine.classes; ++c) {
    check_order(ClassId(c));
    // What a plan that has grown keeps for a class may be in use by others until they are done.
    if (scenario_.growths.empty()) check_reserve(ClassId(c));
  }
}

// In the order of time: while something waits, nothing less urgent of its class is granted. What happens at one time
// may have happened in any order.
void ChoiceChecker::check_order(ClassId cls) {
  enum Step : std::uint8_t { kLeaves, kChecked, kBoosted, kComes };
  std::vector<std::tuple<Time, Step, const Wait*>> steps;
  for (const Wait& w : waits_) {
    if (w.cls != cls || !w.granted) continue;
    steps.emplace_back(*w.granted, kLeaves, &w);
    steps.emplace_back(*w.granted, kChecked, &w);
    if (w.announced == *w.granted) continue;
    steps.emplace_back(w.announced, kComes, &w);
    if (w.boosted && *w.boosted > w.announced && *w.boosted < *w.granted) steps.emplace_back(*w.boosted, kBoosted, &w);
  }
  std::ranges::sort(steps);
  const auto urgency = [](const Wait& w, bool boosted) {
    Urgency u = w.urgency;
    u.unboosted = !boosted;
    return u;
  };
  std::map<Urgency, std::uint64_t> waiting;
  const auto leave = [&](const Urgency& u) {
    const auto found = waiting.find(u);
    if (found != waiting.end() && --found->second == 0) waiting.erase(found);
  };
  for (const auto& [now, step, w] : steps) {
    const bool boosted = w->boosted && *w->boosted < now;
    if (step == kComes) ++waiting[urgency(*w, w->boosted && *w->boosted <= now)];
    if (step == kLeaves && w->announced < now) leave(urgency(*w, boosted));
    if (step == kBoosted) {
      leave(urgency(*w, false));
      ++waiting[urgency(*w, true)];
    }
    if (step != kChecked || waiting.empty()) continue;
    const Urgency mine = urgency(*w, w->boosted && *w->boosted <= now), &best = waiting.begin()->first;
    if (!(best < mine)) continue;
    return findings_.fail(
        "choice", "host {}, class {}: tensor {} was granted staging at {} ns while tensor {}{} waited", host_.value,
        cls.value, mine.tensor, now.value, best.tensor, best.unboosted ? "" : ", which was waited for,");
  }
}

// Every class can have the staging of its largest slice at any time: so nothing of it waits while it uses none.
void ChoiceChecker::check_reserve(ClassId cls) {
  std::vector<std::pair<Time, Time>> used, waited;
  for (const Wait& w : waits_) {
    if (w.cls != cls || !w.granted) continue;
    used.emplace_back(*w.granted, w.done.value_or(kNever));
    if (w.announced < *w.granted) waited.emplace_back(w.announced, *w.granted);
  }
  std::ranges::sort(used);
  std::ranges::sort(waited);
  Time free_from;
  std::size_t next = 0;
  for (const auto& [from, until] : waited) {
    for (; next < used.size() && used[next].first <= from; ++next) free_from = std::max(free_from, used[next].second);
    const Time end = next < used.size() ? std::min(until, used[next].first) : until;
    if (std::max(from, free_from) >= end) continue;
    return findings_.fail("choice",
                          "host {}: class {} waits for staging from {} ns to {} ns while it uses none of its own",
                          host_.value, cls.value, from.value, end.value);
  }
}

}  // namespace tensorlane::simulator
