#include "daemon/control/registration.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "common/protocol/exchange.h"
#include "daemon/control/message.h"

namespace tensorlane::control {
namespace {

using nlohmann::json;
using protocol::PlanTensor;
using protocol::TensorBody;

std::string shape_text(const TensorBody& t) {
  return fmt::format("{}[{}]", dtype_name(t.dtype), t.elements);
}

std::string position_text(const TensorBody& t) {
  return fmt::format("position {} of {}", t.position, t.positions);
}

std::string urgency_text(const TensorBody& t) {
  if (t.explicit_urgency == protocol::kUnsaidUrgency) return "no urgency";
  return t.explicit_urgency != 0 ? fmt::format("urgency {}", t.urgency) : "urgency by layer order";
}

std::string pattern_text(const TensorBody& t) {
  if (t.pattern == protocol::kDaemonsPattern) return "the daemon's pattern";
  if (t.pattern == protocol::kAutomaticPattern) return "pattern auto";
  return fmt::format("pattern {}", protocol::pattern_name(static_cast<protocol::Pattern>(t.pattern - 1)));
}

// How the two values read where they differ; nothing when these are the same tensor.
std::optional<std::pair<std::string, std::string>> difference(const TensorBody& a, const TensorBody& b) {
  using Pair = std::pair<std::string, std::string>;
  if (a.dtype != b.dtype || a.elements != b.elements) return Pair(shape_text(a), shape_text(b));
  if (a.operation != b.operation) return Pair(operation_name(a.operation), operation_name(b.operation));
  if (reduces(a.operation) && a.reduce != b.reduce) return Pair(reduce_op_name(a.reduce), reduce_op_name(b.reduce));
  if (is_rooted(a.operation) && a.root != b.root)
    return Pair(fmt::format("root {}", a.root), fmt::format("root {}", b.root));
  if (a.operation == Operation::kReduceScatter && a.row != b.row)
    return Pair(fmt::format("rows of {}", a.row), fmt::format("rows of {}", b.row));
  if (a.position != b.position || a.positions != b.positions) return Pair(position_text(a), position_text(b));
  if (a.explicit_urgency != b.explicit_urgency || (a.explicit_urgency != 0 && a.urgency != b.urgency))
    return Pair(urgency_text(a), urgency_text(b));
  if (a.pattern != b.pattern) return Pair(pattern_text(a), pattern_text(b));
  return std::nullopt;
}

Status check_tensor(const TensorBody& t, std::uint32_t world_size) {
  const auto bad = [&](std::string what) {
    return Status(Code::kInvalidArgument, fmt::format("tensor '{}' {}", name_of(t), what));
  };
  if (name_of(t).empty()) return Status(Code::kInvalidArgument, "a tensor has no name");
  if (static_cast<std::size_t>(t.dtype) >= kDtypeCount) return bad("has an unknown dtype");
  if (t.operation > kLastOperation) return bad("has an unknown operation");
  if (static_cast<std::size_t>(t.reduce) >= kReduceOpCount) return bad("has an unknown reduction");
  if (reduces(t.operation) && !can_reduce(t.reduce, t.dtype))
    return bad(fmt::format("is an average of {}", dtype_name(t.dtype)));
  const bool moves_nothing = t.operation == Operation::kBarrier;
  if ((t.elements == 0 && !moves_nothing) || t.elements > protocol::kMaxElements) {
    return bad(fmt::format("has {} elements, not between 1 and {}", t.elements, protocol::kMaxElements));
  }
  if (is_rooted(t.operation) && t.root >= world_size) {
    return bad(fmt::format("has root {} in a world of {} ranks", t.root, world_size));
  }
  if (t.operation == Operation::kAllgather && t.elements % world_size != 0) {
    return bad(fmt::format("has {} elements, which {} ranks do not divide", t.elements, world_size));
  }
  if (exchanges(t.operation) && t.elements % protocol::Exchange::unit(t.operation, world_size) != 0) {
    return bad(fmt::format("has {} elements, not a multiple of {}", t.elements,
                           protocol::Exchange::unit(t.operation, world_size)));
  }
  if (!is_row_of(t.operation, t.row, t.elements)) {
    return bad(fmt::format("has {} elements in rows of {}", t.elements, t.row));
  }
  if (t.explicit_urgency != 0 && !(t.urgency >= 0 && t.urgency <= 1))
    return bad(fmt::format("has urgency {}, not between 0 and 1", t.urgency));
  if (t.pattern != protocol::kDaemonsPattern && t.pattern != protocol::kAutomaticPattern &&
      !protocol::is_selectable(static_cast<protocol::Pattern>(t.pattern - 1)))
    return bad(fmt::format("asks for pattern {}, which is none", t.pattern));
  if (t.pattern != protocol::kDaemonsPattern && is_keyed(t.operation))
    return bad("asks for a pattern, but a push and its pull are cut in one way, the daemon's");
  if (t.explicit_urgency == 0 && t.positions != 0 && t.position >= t.positions) {
    return bad(fmt::format("has position {} of {}", t.position, t.positions));
  }
  return {};
}

}  // namespace

std::string_view name_of(const TensorBody& tensor) {
  return {tensor.name, ::strnlen(tensor.name, protocol::kMaxName)};
}

std::string group_where(const std::string& job, const std::string& group) {
  return fmt::format("group '{}' of job '{}'", group, job);
}

Status check_group(const std::string& job, const std::string& group, const RankGroup& of, std::uint32_t world_size) {
  const auto bad = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, fmt::format("rank {}: {}", of.rank, what), group_where(job, group),
                  "correct what the rank registers");
  };
  if (group.empty() || group.size() > protocol::kMaxName) return bad("the group has no name, or one that is too long");
  if (of.tensors.empty()) return bad("the group has no tensors");
  std::unordered_map<std::string_view, const TensorBody*> names;
  for (const TensorBody& tensor : of.tensors) {
    const Status status = check_tensor(tensor, world_size);
    if (!status.ok()) return bad(status.what());
    if (!names.emplace(name_of(tensor), &tensor).second)
      return bad(fmt::format("tensor '{}' comes twice", name_of(tensor)));
  }
  return {};
}

Status compare_groups(const std::string& job, const std::string& group, const RankGroup& reference,
                      const RankGroup& other) {
  const auto mismatch = [&](std::string what) {
    return Status(Code::kMismatch, std::move(what), group_where(job, group),
                  "register the same tensors with the same properties on every rank");
  };
  const auto left_out = [&](const RankGroup& by, std::string_view name, const RankGroup& registered_by) {
    return mismatch(
        fmt::format("rank {} leaves out tensor '{}' that rank {} registers", by.rank, name, registered_by.rank));
  };
  std::unordered_map<std::string_view, const TensorBody*> names;
  for (const TensorBody& tensor : other.tensors) names.emplace(name_of(tensor), &tensor);
  for (const TensorBody& tensor : reference.tensors) {
    const auto it = names.find(name_of(tensor));
    if (it == names.end()) return left_out(other, name_of(tensor), reference);
    if (const auto differs = difference(tensor, *it->second)) {
      return mismatch(fmt::format("tensor '{}' differs: rank {} registers {}, rank {} {}", name_of(tensor),
                                  reference.rank, differs->first, other.rank, differs->second));
    }
    names.erase(it);
  }
  for (const TensorBody& tensor : other.tensors) {
    if (names.contains(name_of(tensor))) return left_out(reference, name_of(tensor), other);
  }
  return {};
}

json tensors_to_json(const std::vector<TensorBody>& tensors) {
  json array = json::array();
  for (const TensorBody& t : tensors) {
    array.push_back(json::array({name_of(t), t.elements, t.row, t.position, t.positions, t.root,
                                 static_cast<std::uint32_t>(t.dtype), static_cast<std::uint32_t>(t.operation),
                                 static_cast<std::uint32_t>(t.reduce), t.explicit_urgency, t.urgency, t.pattern}));
  }
  return array;
}

std::optional<std::vector<TensorBody>> tensors_from_json(const json& array) {
  std::vector<TensorBody> tensors;
  tensors.reserve(array.size());
  for (const json& item : array) {
    ItemReader in(item);
    TensorBody t;
    const std::string name = in.text(protocol::kMaxName);
    std::memcpy(t.name, name.data(), name.size());
    t.elements = in.number(protocol::kMaxElements);
    t.row = in.number(protocol::kMaxElements);
    t.position = in.u32();
    t.positions = in.u32();
    t.root = in.u32();
    t.dtype = static_cast<Dtype>(in.number(kDtypeCount - 1));
    t.operation = static_cast<Operation>(in.number(static_cast<std::uint64_t>(kLastOperation)));
    t.reduce = static_cast<ReduceOp>(in.number(kReduceOpCount - 1));
    t.explicit_urgency = static_cast<std::uint8_t>(in.number(protocol::kUnsaidUrgency));
    t.urgency = in.fraction();
    t.pattern = static_cast<std::uint8_t>(in.number(0xff));
    if (!in.done() || name.empty() || name.find('\0') != std::string::npos) return std::nullopt;
    tensors.push_back(t);
  }
  return tensors;
}

json plan_tensors_to_json(const std::vector<PlanTensor>& tensors) {
  json array = json::array();
  for (const PlanTensor& t : tensors) {
    array.push_back(
        json::array({t.name, t.id.value, static_cast<std::uint32_t>(t.operation), static_cast<std::uint32_t>(t.reduce),
                     static_cast<std::uint32_t>(t.dtype), static_cast<std::uint32_t>(t.pattern), t.cls.value, t.urgency,
                     t.elements, t.row, t.slice_elements, t.root.value, t.root_rank.value, t.fp32_contributions,
                     t.in_batch() ? std::uint64_t{t.batch} + 1 : 0, t.batch_offset, t.members, t.base}));
  }
  return array;
}

std::optional<std::vector<PlanTensor>> plan_tensors_from_json(const json& array) {
  std::vector<PlanTensor> tensors;
  tensors.reserve(array.size());
  for (const json& item : array) {
    ItemReader in(item);
    PlanTensor t;
    t.name = in.text(protocol::kMaxName);
    t.id = TensorId(in.u32());
    t.operation = static_cast<Operation>(in.number(static_cast<std::uint64_t>(kLastOperation)));
    t.reduce = static_cast<ReduceOp>(in.number(kReduceOpCount - 1));
    t.dtype = static_cast<Dtype>(in.number(kDtypeCount - 1));
    t.pattern = static_cast<protocol::Pattern>(
        in.number(0xff));  // which there are is the engine's knowledge; the hash covers it
    t.cls = ClassId(static_cast<std::uint8_t>(in.number(kMaxDataClasses - 1)));
    t.urgency = in.fraction();
    t.elements = in.number(protocol::kMaxElements);
    t.row = in.number(protocol::kMaxElements);
    t.slice_elements = in.u32();
    t.root = HostIndex(static_cast<std::uint16_t>(in.number(0xffff)));
    t.root_rank = Rank(in.u32());
    t.fp32_contributions = in.boolean();
    const std::uint64_t batch = in.number(protocol::kNoBatch);  // 0: none
    if (batch > 0) t.batch = static_cast<std::uint32_t>(batch - 1);
    t.batch_offset = in.number(protocol::kMaxElements);
    t.members = in.u32();
    t.base = in.number(~std::uint64_t{0});
    if (!in.done()) return std::nullopt;
    tensors.push_back(std::move(t));
  }
  return tensors;
}

}  // namespace tensorlane::control
