#include "simulator/host/liar.h"

#include <algorithm>

namespace tensorlane::simulator {

using protocol::FrameType;

namespace {

constexpr std::array<const char*, kLies> kNames = {
    "a frame of another job",
    "a frame of another epoch",
    "a tensor that is not in the plan",
    "a sequence far away",
    "a slice of another rail",
    "a slice that the tensor does not have",
    "payload on a control frame",
    "a frame that transports keep to themselves",
    "a frame of an unknown type",
    "an operation announced twice",
    "an announcement with a wrong grant for results",
    "an announcement that nobody needs",
    "a partial sum announced twice",
    "a partial sum of a host that makes none",
    "a grant given twice",
    "a grant without an id",
    "a grant for the next operation",
    "a grant for a contribution that goes elsewhere",
    "half of a contribution, unasked",
    "a contribution from its middle on, unasked",
    "a contribution without credit",
    "a contribution sent twice",
    "a contribution with a wrong grant for results",
    "a contribution above the limit, unasked",
    "a contribution of a host that has none",
    "data for another operation",
    "data for another slice",
    "data outside of the grant",
    "data that is not cut as it must be",
    "data of no bytes",
    "data sent twice",
    "data under a grant of another host",
    "a result before its contribution",
    "a result of a host that does not send it",
    "a result in front of its slice",
    "credit that was not spent",
    "credit that is miscounted",
    "negotiation where there is none, or with the wrong host",
    "negotiation of unknown tensors",
    "an agreement sent twice",
    "a contribution announced by itself, though all were announced together",
    "a contribution announced twice",
    "an announcement in parts of what has none",
    "a message of a rank of another host",
    "a message to a rank of another host",
    "a message of an impossible size",
    "a message without an id",
    "a message granted twice",
    "a message granted without an id",
    "a message refused for what it is",
    "a message's data sent twice",
    "a message's data outside of its grant",
    "a message's data that nobody has asked for",
};

constexpr std::uint32_t kSomeGrant = 5 | 1u << protocol::kGrantIndexBits;

bool names_slice(const protocol::FrameHeader& h) {
  return h.type == FrameType::kRts || h.type == FrameType::kGrant || h.type == FrameType::kData;
}
bool is_eager(const protocol::FrameHeader& h) {
  return h.type == FrameType::kData && (h.flags & protocol::kFlagEager) != 0;
}
bool is_granted(const protocol::FrameHeader& h) {
  return h.type == FrameType::kData && !is_eager(h);
}

}  // namespace

const char* lie_name(Lie lie) {
  return kNames[static_cast<std::size_t>(lie)];
}

Liar::Liar(HostIndex self, const Scenario& scenario, const std::vector<GivenGrant>& grants, Random random)
    : self_(self), scenario_(scenario), grants_(grants), random_(random), worlds_(scenario.worlds()) {
  for (const protocol::PlanTensor& planned : scenario.plan.tensors) {
    const TensorWorld& world = worlds_[planned.id.value];
    slices_.push_back(planned_slices(planned, world.rank_hosts(), world.hosts()));
  }
}

void Liar::heard(HostIndex from, const Header& h) {
  if (h.type == FrameType::kMessage) announced_[{from, h.grant}] = h;
  if (h.type == FrameType::kReady) result_grants_[{from, h.tensor, h.sequence}] = h.grant;
  if (is_eager(h) && h.aux != 0) result_grants_[{from, h.tensor, h.sequence}] = h.aux;
}

std::optional<Liar::Told> Liar::tell(HostIndex to, const Header& sent) {
  if (*scenario_.lie >= Lie::kMessageOfOthers) return of_message(to, sent);
  std::optional<Told> told = of_any(to, sent);
  if (!told && sent.type == FrameType::kReady) told = of_ready(to, sent);
  if (!told && sent.type == FrameType::kGrant) told = of_grant(to, sent);
  if (!told) told = of_word(to, sent);
  if (!told && is_eager(sent)) told = of_eager(to, sent);
  if (!told && is_granted(sent)) told = of_data(to, sent);
  return told;
}

std::optional<Liar::Told> Liar::of_any(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  const bool control = sent.type != FrameType::kData;
  const bool of_operation = sent.type == FrameType::kReady || names_slice(sent);
  switch (*scenario_.lie) {
    case Lie::kOtherJob:
      h.job = scenario_.neighbours.empty() ? JobId(h.job.value + 1) : scenario_.neighbours.front().engine.job;
      return told;
    case Lie::kOtherEpoch:
      h.epoch = Epoch(h.epoch.value + 1);
      return told;
    case Lie::kUnknownTensor:
      h.tensor = TensorId(static_cast<std::uint32_t>(scenario_.plan.tensors.size()));
      return of_operation && !is_granted(sent) ? std::optional(told) : std::nullopt;
    case Lie::kFarSequence:
      h.sequence = Sequence(h.sequence.value + 1000);
      return of_operation && !is_granted(sent) ? std::optional(told) : std::nullopt;
    case Lie::kOtherRail:
      ++h.slice;
      return names_slice(sent) && scenario_.rails() > 1 ? std::optional(told) : std::nullopt;
    case Lie::kBigSlice:
      h.slice += 1'000'000u * scenario_.rails();
      return names_slice(sent) ? std::optional(told) : std::nullopt;
    case Lie::kPayloadOnControl:
      h.payload_bytes = 64;
      return control ? std::optional(told) : std::nullopt;
    case Lie::kTransportsOwn:
      h.type = FrameType::kDelivered;
      return control ? std::optional(told) : std::nullopt;
    case Lie::kUnknownType:
      h.type = static_cast<FrameType>(77);
      return control ? std::optional(told) : std::nullopt;
    case Lie::kCreditUnspent:
      h = {.type = FrameType::kCredit,
           .cls = sent.cls,
           .job = sent.job,
           .epoch = sent.epoch,
           .offset = ~0ull,
           .aux = 64};
      return control ? std::optional(told) : std::nullopt;
    case Lie::kGrantOfOthers:
      return grant_of_others(to);
    default:
      return std::nullopt;
  }
}

std::optional<Liar::Told> Liar::of_ready(HostIndex to, const Header& sent) {
  Told told{to, sent.cls, sent};
  switch (*scenario_.lie) {
    case Lie::kReadyTwice:
      told.after = true;
      return told;
    case Lie::kReadyWrongGrant:
      told.header.grant = sent.grant == 0 ? kSomeGrant : 0;
      return told;
    case Lie::kReadyUnneeded: {
      // Who gets nothing from this host, neither adds to what it has nor sends it a result.
      told.to = HostIndex(static_cast<std::uint16_t>(random_.below(scenario_.hosts())));
      const auto needs = [&](const PlannedSlice& slice) {
        bool leaf = false;
        const bool adds = passes(slice, sent.tensor, self_, told.to, &leaf) && leaf;
        return adds || passes_result(slice, sent.tensor, told.to, self_);
      };
      if (told.to == self_ || std::ranges::any_of(slices_[sent.tensor.value], needs)) return std::nullopt;
      return slices_[sent.tensor.value].empty() ? std::nullopt : std::optional(told);
    }
    case Lie::kEagerAboveLimit:
      return eager_above_limit(to, sent);
    case Lie::kRtsOfLeaf:
      told.after = true;
      told.header.type = FrameType::kRts;
      told.header.grant = 0;
      return name_leaf(to, &told.header) && sent.flags == 0 ? std::optional(told) : std::nullopt;
    case Lie::kReadyInPartsOfNothing:
      told.header.flags = protocol::kFlagInParts;
      return name_leaf(to, &told.header) ? std::nullopt : std::optional(told);
    default:
      return std::nullopt;
  }
}

// A slice to which this host gives `to` its own data, if there is one.
bool Liar::name_leaf(HostIndex to, Header* h) const {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[h->tensor.value];
  if (!sums(planned) && planned.operation != Operation::kBarrier) return false;
  const auto& slices = slices_[h->tensor.value];
  for (std::uint32_t i = 0; i < slices.size(); ++i) {
    bool leaf = false;
    if (!passes(slices[i], h->tensor, self_, to, &leaf) || !leaf) continue;
    h->slice = i;
    return true;
  }
  return false;
}

std::optional<Liar::Told> Liar::of_grant(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  switch (*scenario_.lie) {
    case Lie::kGrantTwice:
      told.after = true;
      return told;
    case Lie::kGrantWithoutId:
      h.grant = 0;
      return told;
    case Lie::kGrantEarly:
      h.sequence = Sequence(h.sequence.value + 1);
      return told;
    case Lie::kRtsOfNobody:
      h.type = FrameType::kRts;
      h.grant = 0;
      return told;
    case Lie::kEagerOfNobody:
      h.type = FrameType::kData;
      h.flags = protocol::kFlagEager;
      h.grant = 1;
      h.payload_bytes = 16;
      return told;
    case Lie::kResultEarly:
      return result_early(to, sent);
    default:
      return std::nullopt;
  }
}

// The rest of what travels in the control class.
std::optional<Liar::Told> Liar::of_word(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  const bool control = sent.type != FrameType::kData;
  const bool negotiates = scenario_.plan.ordering == protocol::Ordering::kNegotiated;
  const bool word = sent.type == FrameType::kOffer || sent.type == FrameType::kAgreed;
  switch (*scenario_.lie) {
    case Lie::kRtsTwice:
      told.after = true;
      return sent.type == FrameType::kRts ? std::optional(told) : std::nullopt;
    case Lie::kRtsOfLeafTwice: {
      bool leaf = false;
      told.after = true;
      const bool own = sent.type == FrameType::kRts &&
                       passes(slices_[sent.tensor.value][sent.slice], sent.tensor, self_, to, &leaf) && leaf;
      return own ? std::optional(told) : std::nullopt;
    }
    case Lie::kGrantElsewhere:
      h.type = FrameType::kGrant;
      h.grant = kSomeGrant;
      return sent.type == FrameType::kRts ? std::optional(told) : std::nullopt;
    case Lie::kCreditMiscounted:
      ++h.aux;
      return sent.type == FrameType::kCredit ? std::optional(told) : std::nullopt;
    case Lie::kWordAstray:
      h = {.type = to == HostIndex(0)             ? FrameType::kAgreed
                   : sent.sequence.value % 2 == 0 ? FrameType::kOffer
                                                  : FrameType::kAgreed,
           .cls = sent.cls,
           .job = sent.job,
           .epoch = sent.epoch,
           .offset = 1};
      // The leader's agreement would be none of these.
      return control && (!negotiates || self_ != HostIndex(0)) ? std::optional(told) : std::nullopt;
    case Lie::kWordUnknown:
      h.slice = 1000;
      return word ? std::optional(told) : std::nullopt;
    case Lie::kWordTwice:
      told.after = true;
      return sent.type == FrameType::kAgreed ? std::optional(told) : std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Liar::Told> Liar::of_eager(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  switch (*scenario_.lie) {
    case Lie::kEagerShort:
      h.payload_bytes /= 2;
      return h.payload_bytes > 0 ? std::optional(told) : std::nullopt;
    case Lie::kEagerOffset:
      h.offset = 16;
      return told;
    case Lie::kEagerWithoutCredit:
      h.grant = scenario_.engine.eager_credits + 1;
      return told;
    case Lie::kEagerTwice:
      told.after = true;
      h.grant = h.grant % scenario_.engine.eager_credits + 1;
      return told;
    case Lie::kEagerWrongGrant:
      h.aux = sent.aux == 0 ? kSomeGrant : 0;
      return told;
    default:
      return std::nullopt;
  }
}

std::optional<Liar::Told> Liar::of_data(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  const auto& slices = slices_[sent.tensor.value];
  switch (*scenario_.lie) {
    case Lie::kDataOtherOperation:
      h.sequence = Sequence(h.sequence.value + 1);
      return told;
    case Lie::kDataOtherSlice:
      h.slice += scenario_.rails();
      return told;
    case Lie::kDataOutside:
      h.offset += 100 * kMaxOperation.value;
      return told;
    case Lie::kDataCut:
      --h.payload_bytes;
      return h.payload_bytes > 0 ? std::optional(told) : std::nullopt;
    case Lie::kDataEmpty:
      h.payload_bytes = 0;
      return told;
    case Lie::kDataTwice:
      told.after = true;
      return told;
    case Lie::kResultInFront: {
      const auto known = result_grants_.find({to, sent.tensor, sent.sequence});
      const bool result = known != result_grants_.end() && known->second == sent.grant;
      if (!result || sent.slice >= slices.size() || slices[sent.slice].offset == 0) return std::nullopt;
      h.offset = 0;
      return told;
    }
    case Lie::kResultElsewhere:
      return result_elsewhere(to, sent);
    default:
      return std::nullopt;
  }
}

// Before the grant that the peer waits for, in front of it in the same flow.
std::optional<Liar::Told> Liar::result_early(HostIndex to, const Header& sent) const {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[sent.tensor.value];
  const auto known = result_grants_.find({to, sent.tensor, sent.sequence});
  if (known == result_grants_.end() || known->second == 0) return std::nullopt;
  if (sent.slice >= slices_[sent.tensor.value].size()) return std::nullopt;
  const PlannedSlice& slice = slices_[sent.tensor.value][sent.slice];
  const std::uint64_t size = dtype_size(planned.dtype);
  Told told{to, sent.cls, sent};
  told.header.type = FrameType::kData;
  told.header.grant = known->second;
  told.header.offset = slice.offset * size;
  told.header.payload_bytes = static_cast<std::uint32_t>(std::min(slice.elements * size, kMaxOperation.value));
  return told;
}

// Under the peer's grant for results, a slice whose result another host sends it.
std::optional<Liar::Told> Liar::result_elsewhere(HostIndex to, const Header& sent) const {
  const protocol::PlanTensor& planned = scenario_.plan.tensors[sent.tensor.value];
  const auto known = result_grants_.find({to, sent.tensor, sent.sequence});
  if (known == result_grants_.end() || known->second != sent.grant) return std::nullopt;
  const auto& slices = slices_[sent.tensor.value];
  const std::uint64_t size = dtype_size(planned.dtype);
  for (std::uint32_t i = 0; i < slices.size(); ++i) {
    if (i % scenario_.rails() != sent.slice % scenario_.rails() || passes_result(slices[i], sent.tensor, self_, to))
      continue;
    Told told{to, sent.cls, sent};
    told.header.slice = i;
    told.header.offset = slices[i].offset * size;
    told.header.payload_bytes = static_cast<std::uint32_t>(std::min(slices[i].elements * size, kMaxOperation.value));
    return told;
  }
  return std::nullopt;
}

// Before it is announced as too long to go unasked.
std::optional<Liar::Told> Liar::eager_above_limit(HostIndex to, const Header& sent) const {
  const auto& slices = slices_[sent.tensor.value];
  for (std::uint32_t i = 0; i < slices.size(); ++i) {
    bool leaf = false;
    if (!passes(slices[i], sent.tensor, self_, to, &leaf) || !leaf) continue;
    const std::uint32_t length = bytes(slices[i], sent.tensor, true);
    if (length <= scenario_.engine.eager_limit.value || length > kMaxOperation.value) continue;
    Told told{to, sent.cls, sent};
    Header& h = told.header;
    h.type = FrameType::kData;
    h.flags = protocol::kFlagEager;
    h.slice = i;
    h.payload_bytes = length;
    h.aux = sent.grant;
    h.grant = 1;
    return told;
  }
  return std::nullopt;
}

// Of the last grants that the peer has given to others.
std::optional<Liar::Told> Liar::grant_of_others(HostIndex to) const {
  for (std::size_t i = grants_.size(), tried = 0; i-- > 0 && tried < 8; ++tried) {
    const GivenGrant& given = grants_[i];
    if (given.from != to || given.to == self_) continue;
    const auto& slices = slices_[given.header.tensor.value];
    bool leaf = false;
    if (given.header.slice >= slices.size()) continue;
    const PlannedSlice& slice = slices[given.header.slice];
    if (!passes(slice, given.header.tensor, given.to, to, &leaf)) continue;
    Told told{to, kControlClass, given.header};
    told.header.type = FrameType::kData;
    told.header.payload_bytes =
        std::min(bytes(slice, given.header.tensor, leaf), static_cast<std::uint32_t>(kMaxOperation.value));
    return told;
  }
  return std::nullopt;
}

bool Liar::passes(const PlannedSlice& slice, TensorId tensor, HostIndex from, HostIndex to, bool* leaf) const {
  const TensorWorld& world = worlds_[tensor.value];
  const std::optional<HostIndex> a = world.place_of(from), b = world.place_of(to);
  if (!a || !b) return false;
  const auto list = passings(scenario_.plan.tensors[tensor.value].pattern, world.hosts(), slice.owner);
  if (leaf != nullptr) *leaf = std::ranges::count(list, *a, &Passing::to) == 0;
  return std::ranges::any_of(list, [&](const Passing& p) { return p.from == *a && p.to == *b; });
}

std::uint32_t Liar::bytes(const PlannedSlice& slice, TensorId tensor, bool leaf) const {
  return static_cast<std::uint32_t>(slice.elements *
                                    contribution_element_bytes(scenario_.plan.tensors[tensor.value], leaf));
}

// Back on the way of the contributions; a ring goes on in its direction.
bool Liar::passes_result(const PlannedSlice& slice, TensorId tensor, HostIndex from, HostIndex to) const {
  if (scenario_.plan.tensors[tensor.value].pattern != protocol::Pattern::kRing) return passes(slice, tensor, to, from);
  const TensorWorld& world = worlds_[tensor.value];
  const std::optional<HostIndex> a = world.place_of(from), b = world.place_of(to);
  return a && b && *b != slice.owner && b->value == (a->value + 1u) % world.hosts();
}

}  // namespace tensorlane::simulator
