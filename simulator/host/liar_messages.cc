// What a host that lies says of messages between two ranks.
#include <algorithm>

#include "simulator/host/liar.h"

namespace tensorlane::simulator {

using protocol::FrameType;

std::optional<Liar::Told> Liar::of_message(HostIndex to, const Header& sent) const {
  Told told{to, sent.cls, sent};
  Header& h = told.header;
  const auto rank_of = [&](HostIndex host) {
    const auto& hosts = scenario_.plan.rank_hosts;
    return static_cast<std::uint32_t>(std::ranges::find(hosts, host) - hosts.begin());
  };
  const bool grants = sent.type == FrameType::kMessageGrant;
  const bool data = sent.type == FrameType::kData && protocol::is_of_message(sent);
  switch (*scenario_.lie) {
    case Lie::kMessageOfOthers:
      h.tensor = TensorId(rank_of(to));
      break;
    case Lie::kMessageElsewhere:
      h.slice = rank_of(self_);
      break;
    case Lie::kMessageImpossible:
      h.aux = kDtypeCount;
      break;
    case Lie::kMessageWithoutId:
      h.grant = 0;
      break;
    case Lie::kMessageGrantTwice:
      told.after = true;
      return grants ? std::optional(told) : std::nullopt;
    case Lie::kMessageGrantWithoutId:
      h.grant = 0;
      return grants ? std::optional(told) : std::nullopt;
    case Lie::kMessageRefusedAlike: {
      const auto known = announced_.find({to, sent.aux});
      if (!grants || known == announced_.end()) return std::nullopt;
      h.type = FrameType::kMessageRefused;
      h.offset = known->second.offset;
      h.slice = known->second.aux & 0xff;  // the dtype
      return told;
    }
    case Lie::kMessageDataTwice:
      told.after = true;
      return data ? std::optional(told) : std::nullopt;
    case Lie::kMessageDataOutside:
      h.offset += kMaxOperation.value;
      return data ? std::optional(told) : std::nullopt;
    case Lie::kMessageDataUngranted:
      h.grant += 1u << protocol::kGrantIndexBits;
      return data ? std::optional(told) : std::nullopt;
    default:
      return std::nullopt;
  }
  return sent.type == FrameType::kMessage ? std::optional(told) : std::nullopt;
}

}  // namespace tensorlane::simulator
