#include "daemon/transport/resume/exchange.h"

#include <fmt/format.h>

#include <cstring>

namespace tensorlane::resume {
namespace {

FlowParameters parse(std::span<const std::byte> bytes) {
  FlowParameters parameters;
  TL_ASSERT(bytes.size() == sizeof parameters);  // the handshake reads no other length
  std::memcpy(&parameters, bytes.data(), sizeof parameters);
  return parameters;
}

}  // namespace

Result<std::vector<std::byte>> FlowExchange::offer(std::span<const std::byte> peer) {
  if (peer.empty()) {
    mine_ = offers_.offer_flow(key_);
  } else {
    TL_ASSIGN_OR_RETURN(mine_, offers_.answer_flow(key_, parse(peer)));
  }
  const FlowParameters parameters{mine_.identity.mine, mine_.identity.peers, mine_.delivered};
  const auto bytes = handshake::bytes_of(parameters);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Status FlowExchange::accept(std::span<const std::byte> peer) {
  const FlowParameters theirs = parse(peer);
  const bool begins = theirs.to == 0;  // and then this end has answered with a new flow
  if (mine_.identity.peers == 0) mine_.identity.peers = theirs.from;
  if (theirs.from == 0 || theirs.from != mine_.identity.peers || (!begins && theirs.to != mine_.identity.mine))
    return {Code::kMismatch, "it speaks of another flow", {}, kLookThere};
  const bool fits = mine_.number == 0 ? theirs.delivered == 0 : offers_.can_resume(key_, theirs.delivered);
  if (!fits)
    return {Code::kCorrupt, fmt::format("it cannot have {} frames of this host", theirs.delivered), {}, kLookThere};
  peer_has_ = theirs.delivered;
  return {};
}

}  // namespace tensorlane::resume
