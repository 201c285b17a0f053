#include "daemon/transport/dpdk/port/framing.h"

#include <fmt/format.h>

#include <utility>

namespace tensorlane::dpdk {
namespace {

constexpr std::uint64_t kAnswersPerSecond = 1000, kAnswersAtOnce = 64;

const LocalAddress* first_of(const std::vector<LocalAddress>& addresses, bool v6, bool with_gateway) {
  for (const LocalAddress& local : addresses)
    if (local.address.v6 == v6 && (!with_gateway || local.gateway)) return &local;
  return nullptr;
}

}  // namespace

Framing::Framing(PortConfig config, const MacAddress& mac)
    : config_(std::move(config)),
      filter_{mac, config_.addresses, config_.vlan, config_.udp_port},
      neighbours_({.entries = config_.max_peers}),
      answer_rate_({.rate = BitsPerSecond(kAnswersPerSecond * 8), .burst = Bytes(kAnswersAtOnce)}) {
  TL_ASSERT(check(config_).ok());
  for (const StaticNeighbour& neighbour : config_.neighbours) neighbours_.add_static(neighbour.address, neighbour.mac);
}

const LocalAddress* Framing::local_for(const IpAddress& address, bool* direct) const {
  for (const LocalAddress& local : config_.addresses) {
    if (!same_network(local.address, address, local.prefix)) continue;
    *direct = true;
    return &local;
  }
  *direct = false;
  return first_of(config_.addresses, address.v6, true);
}

Result<PeerId> Framing::add_peer(const IpAddress& address) {
  if (!is_unicast(address))
    return Status(Code::kInvalidArgument, "this is no address of a host", to_string(address), "name a host's address");
  for (const LocalAddress& local : config_.addresses)
    if (local.address == address)
      return Status(Code::kInvalidArgument, "the port would send to itself", to_string(address), "name another host");
  if (first_of(config_.addresses, address.v6, false) == nullptr)
    return Status(Code::kInvalidArgument, fmt::format("the port has no {} address", address.v6 ? "IPv6" : "IPv4"),
                  to_string(address), "give the port an address of the same family");
  bool direct = false;
  const LocalAddress* const local = local_for(address, &direct);
  if (local == nullptr)
    return Status(Code::kInvalidArgument, "the host is outside of the port's networks, and there is no gateway",
                  to_string(address), "correct the prefix, or name a gateway");
  if (const auto found = peer_of_.find(address); found != peer_of_.end()) {
    ++peers_[found->second].users;
    return PeerId(found->second);
  }
  if (free_peers_.empty() && peers_.size() >= config_.max_peers)
    return Status(Code::kResourceExhausted,
                  fmt::format("the port sends to {} hosts, and to no more at a time", config_.max_peers),
                  to_string(address), "run fewer jobs on it at a time, or spread them over rails");
  TL_ASSIGN_OR_RETURN(const Neighbours::Index neighbour, neighbours_.want(direct ? address : *local->gateway));
  auto index = static_cast<std::uint32_t>(peers_.size());
  if (free_peers_.empty()) {
    peers_.emplace_back();
  } else {
    index = free_peers_.back();
    free_peers_.pop_back();
  }
  peers_[index] = {address, local, neighbour, 1};
  peer_of_.emplace(address, index);
  return PeerId(index);
}

void Framing::remove_peer(PeerId peer) {
  TL_ASSERT(peer.value < peers_.size() && peers_[peer.value].from != nullptr);
  if (--peers_[peer.value].users > 0) return;
  peer_of_.erase(peers_[peer.value].address);
  neighbours_.release(peers_[peer.value].neighbour);
  peers_[peer.value] = {};
  free_peers_.push_back(peer.value);
}

std::optional<std::uint16_t> Framing::tci(std::size_t queue) const {
  if (!config_.vlan) return std::nullopt;
  return make_tci(config_.queues[queue].pcp, *config_.vlan);
}

std::size_t Framing::write(std::size_t queue, const Path& path, std::byte* payload, std::size_t bytes,
                           ChecksumOffload offload, Parts behind) {
  const Peer& peer = peers_[path.peer.value];
  TL_ASSERT(peer.from != nullptr && bytes + bytes_of(behind) + ip_udp_bytes(peer.address.v6) <= config_.mtu);
  const MacAddress* const to = neighbours_.mac(peer.neighbour);
  if (to == nullptr) return 0;
  const DatagramHeaders headers{.to = *to,
                                .from = filter_.mac,
                                .tci = tci(queue),
                                .source = peer.from->address,
                                .destination = peer.address,
                                .traffic_class = make_traffic_class(config_.queues[queue].dscp),
                                .source_port = path.source_port,
                                .destination_port = config_.udp_port};
  return write_headers(headers, payload, bytes, offload, behind);
}

std::optional<Received> Framing::take(Time now, std::span<std::byte> frame, const FrameNotes& notes) {
  const ParsedFrame parsed = parse_frame(frame, notes, filter_);
  switch (parsed.kind) {
    case ParsedFrame::Kind::kDatagram:
      ++counts_.received_packets;
      counts_.received_bytes += parsed.received.payload.size();
      return parsed.received;
    case ParsedFrame::Kind::kNeighbour:
      take_message(now, parsed.neighbour);
      return std::nullopt;
    case ParsedFrame::Kind::kDropped:
      break;
  }
  count_drop(parsed.drop);
  return std::nullopt;
}

void Framing::take_message(Time now, const NeighbourMessage& message) {
  if (message.kind == NeighbourMessage::Kind::kAnswer) {
    if (!neighbours_.confirm(now, message.subject, message.mac)) count_drop(Drop::kUnasked);
    return;
  }
  if (answers_count_ == answers_.size() || answer_rate_.empty(now)) {
    count_drop(Drop::kAnswerLimited);
    return;
  }
  answer_rate_.take(now, Bytes(1));
  answers_[answers_count_++] = message;
}

std::size_t Framing::next_discovery(Time now, std::span<std::byte> out) {
  const auto source = [&] { return DiscoverySource{filter_.mac, tci(0), make_traffic_class(config_.queues[0].dscp)}; };
  if (answers_count_ > 0) {
    ++counts_.neighbour_answers;
    return write_answer(source(), answers_[--answers_count_], out);
  }
  const auto question = neighbours_.next_question(now);
  if (!question) return 0;
  bool direct = false;
  const LocalAddress* const local = local_for(question->subject, &direct);
  TL_ASSERT(local != nullptr);
  ++counts_.neighbour_questions;
  return write_question(source(), local->address, question->subject, question->at, out);
}

}  // namespace tensorlane::dpdk
