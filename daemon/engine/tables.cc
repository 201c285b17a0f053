#include "daemon/engine/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "common/base/assert.h"
#include "common/protocol/exchange.h"
#include "daemon/engine/egress/send_queue.h"
#include "daemon/engine/pattern/rails.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"
#include "daemon/engine/world_view.h"

namespace tensorlane::engine {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 32;
constexpr std::uint64_t kMostSliceNumbers = std::uint64_t{1} << 32;

Status invalid(const PlanTensor& t, const std::string& what, const std::string& fix) {
  return {Code::kInvalidArgument, what, fmt::format("tensor {} '{}' of the plan", t.id.value, t.name), fix};
}

bool unchanged(const PlanTensor& a, const PlanTensor& b) {
  if (a.vacant || b.vacant) return a.vacant == b.vacant;
  if (a.operation != b.operation || a.pattern != b.pattern || a.cls != b.cls || a.urgency != b.urgency) return false;
  if (!protocol::is_same(a.world, b.world)) return false;
  if (a.operation == Operation::kBarrier) return true;  // the rest of it is our own
  return a.reduce == b.reduce && a.dtype == b.dtype && a.elements == b.elements && a.row == b.row &&
         a.slice_elements == b.slice_elements && a.root == b.root && a.root_rank == b.root_rank &&
         a.fp32_contributions == b.fp32_contributions && a.batch == b.batch && a.batch_offset == b.batch_offset &&
         a.members == b.members;
}

// Into how many slices every block of an exchange is cut.
std::uint64_t slices_of_block(const PlanTensor& t, const protocol::Exchange& exchange) {
  return (exchange.block() + t.slice_elements - 1) / t.slice_elements;
}

Status check_exchange(const WorldView& view, const PlanTensor& t) {
  const std::uint64_t unit = protocol::Exchange::unit(t.operation, view.size);
  if (t.elements % unit != 0) {
    return invalid(t, fmt::format("{} elements in {} blocks", t.elements, unit),
                   "give every pair of ranks a block of the same size");
  }
  const protocol::Exchange exchange = exchange_of(t, view.size);
  if (t.operation != Operation::kAlltoall &&
      (t.root_rank.value >= view.size || view.rank_hosts[t.root_rank.value] != t.root)) {
    return invalid(t, fmt::format("root rank {} on host {}", t.root_rank.value, t.root.value),
                   "name a rank of the job and its host");
  }
  const std::uint64_t pairs = exchange.pair(view.size - 1, view.size - 1) + 1;
  if (slices_of_block(t, exchange) > kMostSliceNumbers / pairs) {
    return invalid(t, fmt::format("{} blocks in {} slices each", pairs, slices_of_block(t, exchange)),
                   "use larger slices");
  }
  return {};
}

// Of a tensor whose blocks belong to ranks.
Status check_rank_hosts(const WorldView& view, const PlanTensor& t) {
  if (view.rank_hosts.size() != view.size) {
    return invalid(
        t, fmt::format("the plan names the hosts of {} ranks for the blocks of {}", view.rank_hosts.size(), view.size),
        fmt::format("name all {}", view.size));
  }
  for (HostIndex host : view.rank_hosts) {
    if (host.value >= view.hosts)
      return invalid(t, fmt::format("host {} of {}", host.value, view.hosts), "name hosts of the job");
  }
  if (!is_row_of(t.operation, t.row, t.elements)) {
    return invalid(t, fmt::format("{} elements in rows of {}", t.elements, t.row), "use whole rows");
  }
  if (t.operation == Operation::kAllgather && t.elements % view.size != 0) {
    return invalid(t, fmt::format("{} gathered elements for {} ranks", t.elements, view.size),
                   "give every rank a block of the same size");
  }
  return exchanges(t.operation) ? check_exchange(view, t) : Status();
}

// Of a process set: its ranks and hosts are of the job.
Status check_world(const EngineConfig& config, const PlanTensor& t) {
  if (t.world == nullptr) return {};
  const HostIndex last = t.world->host(HostIndex(t.world->hosts() - 1));
  if (t.world->ranks().back() >= config.world_size || last.value >= config.hosts) {
    return invalid(t,
                   fmt::format("rank {} and host {} of a job with {} and {}", t.world->ranks().back(), last.value,
                               config.world_size, config.hosts),
                   "name ranks and hosts of the job");
  }
  return {};
}

Status check_tensor(const EngineConfig& config, const Plan& plan, std::size_t position) {
  const PlanTensor& t = plan.tensors[position];
  if (t.id.value != position)
    return invalid(t, fmt::format("it stands at position {}", position), "number the tensors from 0");
  if (t.vacant) return invalid(t, "nothing is there", "only add tensors");
  if (t.operation > kLastOperation || static_cast<std::size_t>(t.reduce) >= kReduceOpCount ||
      static_cast<std::size_t>(t.dtype) >= kDtypeCount ||
      static_cast<std::size_t>(t.pattern) >= protocol::kPatternCount) {
    return invalid(t, "unknown operation, reduction, dtype or pattern",
                   "install the same tensorlane version on every host");
  }
  if (t.cls.value >= config.classes) {
    return invalid(t, fmt::format("class {} of {}", t.cls.value, config.classes), "use classes of the fabric file");
  }
  if (!(t.urgency >= 0 && t.urgency <= 1))
    return invalid(t, fmt::format("urgency {}", t.urgency), "use a number from 0 to 1");
  if (t.base > kMaxSequence / 2)
    return invalid(t, fmt::format("operations go on from {}", t.base), "unregister the same tensors less often");
  TL_RETURN_IF_ERROR(check_world(config, t));
  if (t.operation == Operation::kBarrier) return {};
  if (t.elements == 0 || t.elements > kMaxElements) {
    return invalid(t, fmt::format("{} elements", t.elements), fmt::format("use 1 to {}", kMaxElements));
  }
  if (reduces(t.operation) && !can_reduce(t.reduce, t.dtype)) {
    return invalid(t, fmt::format("an average of {}", dtype_name(t.dtype)), "use a sum");
  }
  if (t.slice_elements == 0) return invalid(t, "slices of no elements", "use default_slice_elements()");
  const std::uint64_t slice_bytes = std::min<std::uint64_t>(t.slice_elements, t.elements) *
                                    std::max<std::uint64_t>(dtype_size(t.dtype), sizeof(float));
  if (slice_bytes > Extent::kMaxLength) {
    return invalid(t, fmt::format("slices of {} bytes", slice_bytes),
                   fmt::format("use at most {}", Extent::kMaxLength));
  }
  const WorldView view(config, plan, t);
  const bool rooted = is_rooted(t.operation) || t.pattern == Pattern::kWholeServer;
  if (rooted && t.root.value >= view.hosts) {
    return invalid(t, fmt::format("root host {} of {}", t.root.value, view.hosts), "name a host of the job");
  }
  const bool of_blocks =
      t.operation == Operation::kAllgather || t.operation == Operation::kReduceScatter || exchanges(t.operation);
  return of_blocks ? check_rank_hosts(view, t) : Status();
}

Range close_range(std::size_t first, std::size_t end) {
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)};
}

// Builds the tables of one tensor, in which this host has a part; shards have one route each, and all of their slices
// share it. Shards and routes are counted in the tensor's world, what is in the tables is of the job.
class Builder {
 public:
  // `self`: this host's place. `slices`, `sends`: how many all other tensors have. `tables` are this tensor's alone.
  Builder(const EngineConfig& config, const WorldView& view, HostIndex self, std::size_t slices, std::size_t sends,
          Tensor& tensor, PlanTables* tables)
      : config_(config),
        view_(view),
        self_(self),
        other_slices_(slices),
        other_sends_(sends),
        tensor_(tensor),
        t_(*tables) {}

  Status add_shard(const Shard& shard) {
    return add_slices(shard, route(tensor_.plan.pattern, view_.hosts, shard.owner, self_), shard.offset);
  }

  // The blocks that this host sends to others or gets from them, in order of the numbers of their slices. Their way is
  // the same whatever the pattern: straight from the owner to the host that gets them.
  Status add_blocks() {
    const protocol::Exchange exchange = exchange_of(tensor_.plan, view_.size);
    const protocol::RankPlaces places(view_.rank_hosts);
    const protocol::HostExchange self(exchange, places, self_);
    std::vector<std::uint32_t> all(places.world_size());
    std::iota(all.begin(), all.end(), 0u);
    for (std::uint32_t from = 0; from < places.world_size(); ++from) {
      for (const std::uint32_t to : self.has(from) ? std::span<const std::uint32_t>(all) : places.ranks(self_)) {
        if (self.has(from) == self.has(to) || !exchange.sends(from, to)) continue;
        const HostIndex owner = places.host(from), target = places.host(to);
        Route way;
        if (self.has(from)) {
          way.result_to = {target};
        } else {
          way.result_from = owner;
        }
        next_slice_ = static_cast<std::uint32_t>(exchange.pair(from, to) * slices_of_block(tensor_.plan, exchange));
        const protocol::HostExchange at(exchange, places, target);
        const Shard block{at.lands_at(from, to), exchange.block(), owner};
        TL_RETURN_IF_ERROR(add_slices(block, way, self.has(from) ? self.sent_from(from, to) : block.offset));
      }
    }
    return {};
  }

  // Links come last: they are sorted by peer, and everything else refers to them.
  void add_links(std::uint32_t tensor_index) {
    std::vector<HostIndex> peers;
    for_each_peer([&](HostIndex peer) { peers.push_back(peer); });
    std::ranges::sort(peers);
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    tensor_.links = {static_cast<std::uint32_t>(t_.links.size()), static_cast<std::uint32_t>(peers.size())};
    for (HostIndex peer : peers) t_.links.push_back({.peer = peer});
    fill_links();
    t_.messages += tensor_.links.count;
    for (std::uint32_t s = tensor_.slices.first; s < tensor_.slices.end(); ++s) {
      t_.slices[s].tensor = tensor_index;
      t_.messages += t_.slices[s].sources.count + 1;
    }
  }

 private:
  // `sent_from`: where the shard lies with its owner.
  Status add_slices(const Shard& shard, const Route& way, std::uint64_t sent_from) {
    for (std::uint64_t done = 0; done < shard.elements;) {
      const std::uint64_t elements = std::min<std::uint64_t>(tensor_.plan.slice_elements, shard.elements - done);
      if (tensor_.rail.has(next_slice_)) add_slice(shard, way, done, sent_from + done, elements);
      ++next_slice_;
      done += elements;
      if (other_sends_ + t_.sends.size() > config_.max_queued_slices ||
          other_slices_ + t_.slices.size() > config_.max_queued_slices) {
        return {Code::kResourceExhausted,
                fmt::format("the plan has more than {} slices to send", config_.max_queued_slices),
                fmt::format("tensor {} '{}' of the plan", tensor_.plan.id.value, tensor_.plan.name),
                "use larger slices or raise max_queued_slices"};
      }
    }
    return {};
  }

  // The slice that begins `done` elements into the shard.
  void add_slice(const Shard& shard, const Route& way, std::uint64_t done, std::uint64_t sent_from,
                 std::uint64_t elements) {
    Slice slice{.owner = shard.owner == self_,
                .offset = shard.offset + done,
                .elements = elements,
                .sent_from = sent_from,
                .number = next_slice_};
    const auto index = static_cast<std::uint32_t>(t_.slices.size());
    if (way.result_from) slice.result_from = view_.host(*way.result_from);
    slice.result.length = elements * dtype_size(tensor_.plan.dtype);
    slice.sources.first = static_cast<std::uint32_t>(t_.sources.size());
    if (tensor_.sums) add_sources(shard, way, index, &slice);
    slice.sources.count = static_cast<std::uint32_t>(t_.sources.size()) - slice.sources.first;
    if (tensor_.sums && way.contribution_to) {
      slice.contribution = static_cast<std::uint32_t>(t_.sends.size());
      t_.sends.push_back({.slice = index, .peer = view_.host(*way.contribution_to)});
    }
    slice.results.first = static_cast<std::uint32_t>(t_.sends.size());
    if (tensor_.results) {
      for (HostIndex place : way.result_to)
        t_.sends.push_back({.slice = index, .peer = view_.host(place), .result = true});
    }
    slice.results.count = static_cast<std::uint32_t>(t_.sends.size()) - slice.results.first;
    t_.slices.push_back(slice);
  }

  void add_sources(const Shard& shard, const Route& way, std::uint32_t index, Slice* slice) {
    for (HostIndex place : way.sum_order) {
      if (place == self_) {
        slice->self_place = static_cast<std::uint32_t>(t_.sources.size()) - slice->sources.first;
        continue;
      }
      Source source{.peer = view_.host(place),
                    .leaf = is_leaf(tensor_.plan.pattern, view_.hosts, shard.owner, place),
                    .slice = index};
      source.extent.length = slice->elements * dtype_size(wire_dtype(tensor_, source.leaf));
      t_.sources.push_back(source);
    }
  }

  template <typename F>
  void for_each_peer(F&& f) {
    for (std::uint32_t s = tensor_.slices.first; s < tensor_.slices.end(); ++s) {
      const Slice& slice = t_.slices[s];
      for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) f(t_.sources[i].peer);
      if (slice.contribution != kNoIndex) f(t_.sends[slice.contribution].peer);
      for (std::uint32_t i = slice.results.first; i < slice.results.end(); ++i) f(t_.sends[i].peer);
      if (tensor_.results && !slice.owner) f(slice.result_from);
    }
  }

  std::uint32_t link_of(HostIndex peer) const {
    const auto first = t_.links.begin() + tensor_.links.first;
    const auto found =
        std::lower_bound(first, t_.links.end(), peer, [](const Link& l, HostIndex p) { return l.peer < p; });
    return static_cast<std::uint32_t>(found - t_.links.begin());
  }

  void fill_links() {
    std::vector<std::vector<std::uint32_t>> leaf_sources(tensor_.links.count), result_sends(tensor_.links.count);
    for (std::uint32_t s = tensor_.slices.first; s < tensor_.slices.end(); ++s) {
      const Slice& slice = t_.slices[s];
      for (std::uint32_t i = slice.sources.first; i < slice.sources.end(); ++i) {
        t_.sources[i].link = link_of(t_.sources[i].peer);
        if (t_.sources[i].leaf) leaf_sources[t_.sources[i].link - tensor_.links.first].push_back(i);
      }
      if (slice.contribution != kNoIndex && slice.sources.count == 0) {
        Link& link = t_.links[link_of(t_.sends[slice.contribution].peer)];
        ++link.leaf_out;
        link.leaf_out_bytes_most = std::max(link.leaf_out_bytes_most, slice.elements * dtype_size(tensor_.leaf_dtype));
      }
      for (std::uint32_t i = slice.results.first; i < slice.results.end(); ++i) {
        result_sends[link_of(t_.sends[i].peer) - tensor_.links.first].push_back(i);
      }
      if (tensor_.results && !slice.owner) t_.links[link_of(slice.result_from)].result_in = tensor_.result_in = true;
    }
    for (std::uint32_t l = 0; l < tensor_.links.count; ++l) {
      Link& link = t_.links[tensor_.links.first + l];
      link.leaf_sources = {static_cast<std::uint32_t>(t_.leaf_sources.size()),
                           static_cast<std::uint32_t>(leaf_sources[l].size())};
      link.result_sends = {static_cast<std::uint32_t>(t_.result_sends.size()),
                           static_cast<std::uint32_t>(result_sends[l].size())};
      t_.leaf_sources.insert(t_.leaf_sources.end(), leaf_sources[l].begin(), leaf_sources[l].end());
      t_.result_sends.insert(t_.result_sends.end(), result_sends[l].begin(), result_sends[l].end());
    }
  }

  const EngineConfig& config_;
  const WorldView& view_;
  const HostIndex self_;
  const std::size_t other_slices_, other_sends_;
  std::uint32_t next_slice_ = 0;  // its number in the plan, on whatever rail
  Tensor& tensor_;
  PlanTables& t_;
};

// Copies the entries of `piece` to where there is room in `into`. Returns where they begin there.
template <typename T>
std::uint32_t move_in(const std::vector<T>& piece, Holes& holes, std::vector<T>* into) {
  const std::uint32_t first = holes.take(static_cast<std::uint32_t>(piece.size()), into->size());
  into->resize(std::max(into->size(), first + piece.size()));
  std::ranges::copy(piece, into->begin() + first);
  return first;
}

// The tables of one tensor, which refer to themselves from 0 on, find their places in those of the job.
void place_tables(PlanTables& piece, PlanTables* tables) {
  PlanTables& t = *tables;
  Tensor& tensor = piece.tensors.front();
  const std::uint32_t slices = move_in(piece.slices, t.holes.slices, &t.slices);
  const std::uint32_t links = move_in(piece.links, t.holes.links, &t.links);
  const std::uint32_t sources = move_in(piece.sources, t.holes.sources, &t.sources);
  const std::uint32_t sends = move_in(piece.sends, t.holes.sends, &t.sends);
  const std::uint32_t leaf_sources = move_in(piece.leaf_sources, t.holes.leaf_sources, &t.leaf_sources);
  const std::uint32_t result_sends = move_in(piece.result_sends, t.holes.result_sends, &t.result_sends);
  for (std::uint32_t i = 0; i < piece.slices.size(); ++i) {
    Slice& slice = t.slices[slices + i];
    if (slice.contribution != kNoIndex) slice.contribution += sends;
    slice.sources.first += sources;
    slice.results.first += sends;
  }
  for (std::uint32_t i = 0; i < piece.links.size(); ++i) {
    t.links[links + i].leaf_sources.first += leaf_sources;
    t.links[links + i].result_sends.first += result_sends;
  }
  for (std::uint32_t i = 0; i < piece.sources.size(); ++i) {
    t.sources[sources + i].slice += slices;
    t.sources[sources + i].link += links;
  }
  for (std::uint32_t i = 0; i < piece.sends.size(); ++i) t.sends[sends + i].slice += slices;
  for (std::uint32_t i = 0; i < piece.leaf_sources.size(); ++i) t.leaf_sources[leaf_sources + i] += sources;
  for (std::uint32_t i = 0; i < piece.result_sends.size(); ++i) t.result_sends[result_sends + i] += sends;
  tensor.slices.first += slices;
  tensor.links.first += links;
  tensor.sends.first += sends;
}

std::uint32_t messages_of(const PlanTables& tables, const Tensor& tensor) {
  std::uint32_t messages = tensor.links.count;
  for (std::uint32_t s = tensor.slices.first; s < tensor.slices.end(); ++s)
    messages += tables.slices[s].sources.count + 1;
  return messages;
}

template <typename T>
void empty_out(const Range& range, Holes& holes, std::vector<T>* table) {
  std::fill_n(table->begin() + range.first, range.count, T{});
  holes.give(range);
}

}  // namespace

std::uint32_t Holes::take(std::uint32_t count, std::size_t size) {
  const auto end = static_cast<std::uint32_t>(size);
  if (count == 0) return end;
  auto hole = free_.end();
  if (const auto fits = by_count_.lower_bound({count, 0}); fits != by_count_.end()) {
    hole = free_.find(fits->second);
  } else if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end) {
    hole = std::prev(free_.end());  // has as much room as the table can grow
  }
  if (hole == free_.end()) return end;
  const auto [first, room] = *hole;
  remove(hole);
  if (room > count) give({first + count, room - count});
  return first;
}

void Holes::give(const Range& range) {
  if (range.count == 0) return;
  std::uint32_t first = range.first, count = range.count;
  auto after = free_.lower_bound(first);
  if (after != free_.end() && after->first == range.end()) {
    count += after->second;
    after = remove(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      remove(before);
    }
  }
  free_.emplace(first, count);
  by_count_.emplace(count, first);
  entries_ += count;
}

Holes::ByFirst::iterator Holes::remove(ByFirst::iterator hole) {
  by_count_.erase({hole->second, hole->first});
  entries_ -= hole->second;
  return free_.erase(hole);
}

bool needs_fp32_scratch(const PlanTensor& tensor, std::uint16_t job_hosts) {
  if (!reduces(tensor.operation) || dtype_size(tensor.dtype) != 2) return false;
  const std::uint16_t hosts = tensor.world == nullptr ? job_hosts : tensor.world->hosts();
  return tensor.fp32_contributions || passes_partial_sums(tensor.pattern, hosts) || hosts > Work::kMaxSources;
}

std::uint64_t buffer_bytes(const Plan& plan, const PlanTensor& tensor, HostIndex host) {
  const WorldView view(0, static_cast<std::uint32_t>(plan.rank_hosts.size()), plan, tensor);
  const std::optional<HostIndex> place = view.place_of(host);
  if (!place) return 0;
  if (!exchanges(tensor.operation)) return tensor.bytes();
  const protocol::RankPlaces places(view.rank_hosts);
  return protocol::HostExchange(exchange_of(tensor, view.size), places, *place).buffer() * dtype_size(tensor.dtype);
}

Status check_known(const PlanTables& tables, const Plan& plan) {
  for (std::size_t i = 0; i < std::min(plan.tensors.size(), tables.tensors.size()); ++i) {
    if (!unchanged(tables.tensors[i].plan, plan.tensors[i]))
      return invalid(plan.tensors[i], "it differs from the plan before", "only add tensors");
  }
  return {};
}

Status check_plan(const EngineConfig& config, const PlanTables& tables, const Plan& plan, protocol::TensorRange added) {
  if (plan.rails != config.rails) {
    return {Code::kInvalidArgument,
            fmt::format("plan {} is for {} rails, the job has {}", plan.version, plan.rails, config.rails),
            "plan of the job", "give every host the same fabric file"};
  }
  if (plan.tensors.size() < tables.tensors.size()) {
    return {Code::kInvalidArgument,
            fmt::format("plan {} has {} tensors, the one before had {}", plan.version, plan.tensors.size(),
                        tables.tensors.size()),
            "plan of the job", "only add tensors"};
  }
  if (added.end() > plan.tensors.size() || added.first > tables.tensors.size()) {
    return {Code::kInvalidArgument,
            fmt::format("tensors {} to {} are added to {}, which become {}", added.first, added.end(),
                        tables.tensors.size(), plan.tensors.size()),
            "plan of the job", "only add tensors"};
  }
  for (std::uint32_t i = added.first; i < added.end(); ++i) {
    TL_RETURN_IF_ERROR(check_tensor(config, plan, i));
    if (i >= tables.tensors.size()) continue;
    if (!tables.tensors[i].plan.vacant) return invalid(plan.tensors[i], "another tensor is there", "only add tensors");
    if (plan.tensors[i].base < tables.tensors[i].sequence.value) {
      return invalid(plan.tensors[i],
                     fmt::format("operations go on from {}, after {} of the tensor before", plan.tensors[i].base,
                                 tables.tensors[i].sequence.value),
                     "count the operations of all tensors that were there");
    }
  }
  return {};
}

Status place_tensor(const EngineConfig& config, const Plan& plan, const PlanTensor& planned, PlanTables* tables) {
  PlanTables piece;
  Tensor tensor{.plan = planned};
  const WorldView view(config, plan, planned);
  if (planned.operation == Operation::kBarrier) {
    // An allreduce of one element that lies in the engine's own scratch; the sum means nothing, having it means
    // everything.
    tensor.plan.elements = tensor.plan.slice_elements = 1;
    tensor.plan.dtype = Dtype::kFloat32;
    tensor.plan.fp32_contributions = false;
    tensor.plan.reduce = ReduceOp::kSum;
    tensor.barrier = tables->barriers;
  }
  tensor.rail = rail_slices(planned.id, view.hosts, config.rail, config.rails);
  tensor.cls = tensor.next_cls = config.single_queue ? ClassId(0) : planned.cls;
  tensor.urgency = tensor.next_urgency = planned.urgency;
  tensor.sums = reduces(planned.operation) || planned.operation == Operation::kBarrier;
  tensor.results = !stays_with_owners(planned.operation);
  tensor.exchanges = exchanges(planned.operation);
  tensor.buffer_bytes = buffer_bytes(plan, tensor.plan, config.self);
  tensor.leaf_dtype = contribution_dtype(tensor.plan);
  tensor.partial_dtype = dtype_size(tensor.plan.dtype) == 2 ? Dtype::kFloat32 : tensor.plan.dtype;
  if (tensor.sums && tensor.plan.reduce == ReduceOp::kAverage) tensor.divisor = view.size;

  const std::uint32_t index = planned.id.value;
  const std::optional<HostIndex> self = view.place_of(config.self);
  // Where this host has no part in it, or is the only one of a process set, it has a place in the plan and nothing
  // else.
  Builder builder(config, view, self.value_or(HostIndex(0)), tables->slices.size() - tables->holes.slices.entries(),
                  tables->sends.size() - tables->holes.sends.entries(), tensor, &piece);
  const bool takes_part = self && (planned.world == nullptr || view.hosts > 1);
  if (takes_part && tensor.exchanges) {
    TL_RETURN_IF_ERROR(builder.add_blocks());
  } else if (takes_part && !planned.in_batch()) {
    for (const Shard& shard : shards(tensor.plan, view.hosts, view.rank_hosts))
      TL_RETURN_IF_ERROR(builder.add_shard(shard));
  }
  tensor.slices = close_range(0, piece.slices.size());
  for (const Slice& slice : piece.slices) tensor.results_due += tensor.results || slice.owner ? 1 : 0;
  tensor.sends = close_range(0, piece.sends.size());
  builder.add_links(index);
  tensor.sequence = Sequence(planned.base);
  if (planned.operation == Operation::kBarrier) ++tables->barriers;
  tables->messages += piece.messages;
  piece.tensors.push_back(std::move(tensor));
  place_tables(piece, tables);
  if (index == tables->tensors.size()) tables->tensors.emplace_back();
  tables->tensors[index] = std::move(piece.tensors.front());
  return {};
}

bool is_idle(const PlanTables& tables, const Tensor& tensor) {
  if (tensor.open || tensor.awaited != kNoIndex) return false;
  const auto announced = [](const Link& link) { return link.announced(0) || link.announced(1); };
  if (std::ranges::any_of(std::span(tables.links).subspan(tensor.links.first, tensor.links.count), announced))
    return false;
  const auto begun = [](const Source& s) {
    return s.rts[0] || s.rts[1] || s.eager_slot[0] != 0 || s.eager_slot[1] != 0;
  };
  for (std::uint32_t s = tensor.slices.first; s < tensor.slices.end(); ++s) {
    const Range& range = tables.slices[s].sources;
    if (std::ranges::any_of(std::span(tables.sources).subspan(range.first, range.count), begun)) return false;
  }
  return true;
}

void vacate_tensor(std::uint32_t index, PlanTables* tables) {
  PlanTables& t = *tables;
  Tensor& tensor = t.tensors[index];
  t.messages -= messages_of(t, tensor);
  for (std::uint32_t s = tensor.slices.first; s < tensor.slices.end(); ++s)
    empty_out(t.slices[s].sources, t.holes.sources, &t.sources);
  for (std::uint32_t l = tensor.links.first; l < tensor.links.end(); ++l) {
    empty_out(t.links[l].leaf_sources, t.holes.leaf_sources, &t.leaf_sources);
    empty_out(t.links[l].result_sends, t.holes.result_sends, &t.result_sends);
  }
  empty_out(tensor.slices, t.holes.slices, &t.slices);
  empty_out(tensor.links, t.holes.links, &t.links);
  empty_out(tensor.sends, t.holes.sends, &t.sends);
  Tensor gone{.plan = {.id = TensorId(index)}};
  gone.plan.vacant = true;
  gone.sequence = tensor.sequence;
  tensor = std::move(gone);
}

std::uint64_t pages_of_largest_slice(const PlanTables& tables, const Tensor& tensor) {
  std::uint64_t most = 0;
  for (std::uint32_t s = tensor.slices.first; s < tensor.slices.end(); ++s) {
    std::uint64_t pages = 0;
    for (std::uint32_t i = tables.slices[s].sources.first; i < tables.slices[s].sources.end(); ++i) {
      pages += pages_for(tables.sources[i].extent.length);
    }
    most = std::max(most, pages);
  }
  return most;
}

}  // namespace tensorlane::engine
