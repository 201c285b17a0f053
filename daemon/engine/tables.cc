#include "daemon/engine/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/assert.h"
#include "daemon/engine/pattern/rails.h"
#include "daemon/engine/pattern/route.h"
#include "daemon/engine/pattern/shards.h"

namespace tensorlane::engine {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 32;

Status invalid(const PlanTensor& t, const std::string& what, const std::string& fix) {
  return {Code::kInvalidArgument, what, fmt::format("tensor {} '{}' of the plan", t.id.value, t.name), fix};
}

bool unchanged(const PlanTensor& a, const PlanTensor& b) {
  if (a.operation != b.operation || a.pattern != b.pattern || a.cls != b.cls || a.urgency != b.urgency) return false;
  if (a.operation == Operation::kBarrier) return true;  // the rest of it is our own
  return a.reduce == b.reduce && a.dtype == b.dtype && a.elements == b.elements && a.row == b.row &&
         a.slice_elements == b.slice_elements && a.root == b.root && a.wide_contributions == b.wide_contributions &&
         a.batch == b.batch && a.batch_offset == b.batch_offset && a.members == b.members;
}

Status check_rank_hosts(const EngineConfig& config, const Plan& plan, const PlanTensor& t) {
  if (plan.rank_hosts.size() != config.world_size) {
    return invalid(t,
                   fmt::format("the plan names the hosts of {} ranks for the blocks of {}", plan.rank_hosts.size(),
                               config.world_size),
                   fmt::format("name all {}", config.world_size));
  }
  for (HostIndex host : plan.rank_hosts) {
    if (host.value >= config.hosts)
      return invalid(t, fmt::format("host {} of {}", host.value, config.hosts), "name hosts of the job");
  }
  if (!is_row_of(t.operation, t.row, t.elements)) {
    return invalid(t, fmt::format("{} elements in rows of {}", t.elements, t.row), "use whole rows");
  }
  if (t.operation == Operation::kAllgather && t.elements % config.world_size != 0) {
    return invalid(t, fmt::format("{} gathered elements for {} ranks", t.elements, config.world_size),
                   "give every rank a block of the same size");
  }
  return {};
}

Status check_tensor(const EngineConfig& config, const Plan& plan, std::size_t position) {
  const PlanTensor& t = plan.tensors[position];
  if (t.id.value != position)
    return invalid(t, fmt::format("it stands at position {}", position), "number the tensors from 0");
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
  const bool rooted = is_rooted(t.operation) || t.pattern == Pattern::kWholeServer;
  if (rooted && t.root.value >= config.hosts) {
    return invalid(t, fmt::format("root host {} of {}", t.root.value, config.hosts), "name a host of the job");
  }
  const bool of_blocks = t.operation == Operation::kAllgather || t.operation == Operation::kReduceScatter;
  return of_blocks ? check_rank_hosts(config, plan, t) : Status();
}

Range close_range(std::size_t first, std::size_t end) {
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)};
}

// Builds the tables of one tensor; shards have one route each, and all of their slices share it.
class Builder {
 public:
  Builder(const EngineConfig& config, Tensor& tensor, PlanTables* tables)
      : config_(config), tensor_(tensor), t_(*tables) {}

  Status add_shard(const Shard& shard) {
    const Route way = route(tensor_.plan.pattern, config_.hosts, shard.owner, config_.self);
    for (std::uint64_t done = 0; done < shard.elements;) {
      const std::uint64_t elements = std::min<std::uint64_t>(tensor_.plan.slice_elements, shard.elements - done);
      if (tensor_.rail.has(next_slice_++)) add_slice(shard, way, shard.offset + done, elements);
      done += elements;
      if (t_.sends.size() > config_.max_queued_slices || t_.slices.size() > config_.max_queued_slices) {
        return {Code::kResourceExhausted,
                fmt::format("the plan has more than {} slices to send", config_.max_queued_slices),
                fmt::format("tensor {} '{}' of the plan", tensor_.plan.id.value, tensor_.plan.name),
                "use larger slices or raise max_queued_slices"};
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
  void add_slice(const Shard& shard, const Route& way, std::uint64_t offset, std::uint64_t elements) {
    Slice slice{.owner = shard.owner == config_.self, .offset = offset, .elements = elements};
    const auto index = static_cast<std::uint32_t>(t_.slices.size());
    if (way.result_from) slice.result_from = *way.result_from;
    slice.result.length = elements * dtype_size(tensor_.plan.dtype);
    slice.sources.first = static_cast<std::uint32_t>(t_.sources.size());
    if (tensor_.sums) add_sources(shard, way, index, &slice);
    slice.sources.count = static_cast<std::uint32_t>(t_.sources.size()) - slice.sources.first;
    if (tensor_.sums && way.contribution_to) {
      slice.contribution = static_cast<std::uint32_t>(t_.sends.size());
      t_.sends.push_back({.slice = index, .peer = *way.contribution_to});
    }
    slice.results.first = static_cast<std::uint32_t>(t_.sends.size());
    if (tensor_.results) {
      for (HostIndex peer : way.result_to) t_.sends.push_back({.slice = index, .peer = peer, .result = true});
    }
    slice.results.count = static_cast<std::uint32_t>(t_.sends.size()) - slice.results.first;
    t_.slices.push_back(slice);
  }

  void add_sources(const Shard& shard, const Route& way, std::uint32_t index, Slice* slice) {
    for (HostIndex host : way.sum_order) {
      if (host == config_.self) {
        slice->self_place = static_cast<std::uint32_t>(t_.sources.size()) - slice->sources.first;
        continue;
      }
      Source source{
          .peer = host, .leaf = is_leaf(tensor_.plan.pattern, config_.hosts, shard.owner, host), .slice = index};
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
  std::uint32_t next_slice_ = 0;  // of the plan, on whatever rail
  Tensor& tensor_;
  PlanTables& t_;
};

}  // namespace

bool needs_wide(const PlanTensor& tensor, std::uint16_t hosts) {
  if (!reduces(tensor.operation) || dtype_size(tensor.dtype) != 2) return false;
  return tensor.wide_contributions || passes_partial_sums(tensor.pattern, hosts) || hosts > Work::kMaxSources;
}

Status check_known(const PlanTables& tables, const Plan& plan) {
  for (std::size_t i = 0; i < std::min(plan.tensors.size(), tables.tensors.size()); ++i) {
    if (!unchanged(tables.tensors[i].plan, plan.tensors[i]))
      return invalid(plan.tensors[i], "it differs from the plan before", "only add tensors");
  }
  return {};
}

Status check_plan(const EngineConfig& config, const PlanTables& tables, const Plan& plan) {
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
  for (std::size_t i = tables.tensors.size(); i < plan.tensors.size(); ++i)
    TL_RETURN_IF_ERROR(check_tensor(config, plan, i));
  return {};
}

Status append_tensor(const EngineConfig& config, const Plan& plan, const PlanTensor& planned, PlanTables* tables) {
  Tensor tensor{.plan = planned};
  if (planned.operation == Operation::kBarrier) {
    // An allreduce of one element that lies in the engine's own scratch; the sum means nothing, having it means
    // everything.
    tensor.plan.elements = tensor.plan.slice_elements = 1;
    tensor.plan.dtype = Dtype::kFloat32;
    tensor.plan.wide_contributions = false;
    tensor.plan.reduce = ReduceOp::kSum;
    tensor.barrier = tables->barriers++;
  }
  tensor.rail = rail_slices(planned.id, config.hosts, config.rail, config.rails);
  tensor.cls = tensor.next_cls = config.single_queue ? ClassId(0) : planned.cls;
  tensor.urgency = tensor.next_urgency = planned.urgency;
  tensor.sums = reduces(planned.operation) || planned.operation == Operation::kBarrier;
  tensor.results = !stays_with_owners(planned.operation);
  tensor.leaf_dtype = contribution_dtype(tensor.plan);
  tensor.partial_dtype = dtype_size(tensor.plan.dtype) == 2 ? Dtype::kFloat32 : tensor.plan.dtype;
  if (tensor.sums && tensor.plan.reduce == ReduceOp::kAverage) tensor.divisor = config.world_size;

  const std::size_t first_slice = tables->slices.size(), first_send = tables->sends.size();
  Builder builder(config, tensor, tables);
  if (!planned.in_batch()) {
    for (const Shard& shard : shards(tensor.plan, config.hosts, plan.rank_hosts))
      TL_RETURN_IF_ERROR(builder.add_shard(shard));
  }
  tensor.slices = close_range(first_slice, tables->slices.size());
  for (std::uint32_t s = tensor.slices.first; s < tensor.slices.end(); ++s)
    tensor.results_due += tensor.results || tables->slices[s].owner ? 1 : 0;
  tensor.sends = close_range(first_send, tables->sends.size());
  builder.add_links(static_cast<std::uint32_t>(tables->tensors.size()));
  tables->tensors.push_back(std::move(tensor));
  return {};
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
