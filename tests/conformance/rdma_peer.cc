#include "rdma_peer.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <utility>

#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/rdma/gid.h"

namespace tensorlane::conformance {
namespace {

constexpr int kResolveMilliseconds = 2000;

rdma_conn_param parameters(std::uint32_t pair) {
  rdma_conn_param p{};
  p.responder_resources = p.initiator_depth = 1;
  p.retry_count = p.rnr_retry_count = 7;
  p.qp_num = pair;
  return p;
}

sockaddr* address_in(handshake::Endpoint& endpoint) {
  return reinterpret_cast<sockaddr*>(&endpoint.storage);
}

}  // namespace

rdma::Parameters good_parameters(const std::string& address) {
  rdma::Parameters parameters;
  parameters.gid = *rdma::gid_of_address(address);
  parameters.pairs[0] = {0xabcdef, 1};
  return parameters;
}

RawCm::RawCm(TestClock& clock, Host& host, std::string address)
    : clock_(clock), host_(host), address_(std::move(address)), channel_(rdma_create_event_channel()) {
  EXPECT_NE(channel_, nullptr) << "no rdma_cm here";
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
}

RawCm::~RawCm() {
  for (rdma_cm_id* id : ids_) rdma_destroy_id(id);
  rdma_destroy_event_channel(channel_);
}

rdma_cm_id* RawCm::make_id() {
  rdma_cm_id* id = nullptr;
  EXPECT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
  ids_.push_back(id);
  return id;
}

std::pair<RawCm::Answer, rdma_cm_id*> RawCm::wait() {
  rdma_cm_event* event = nullptr;
  if (!run_until(
          clock_, {&host_}, [&] { return rdma_get_cm_event(channel_, &event) == 0; }, std::chrono::seconds(5)))
    return {};
  const std::pair<Answer, rdma_cm_id*> answer{{event->event, event->status, event->param.conn.qp_num}, event->id};
  rdma_ack_cm_event(event);
  return answer;
}

RawCm::Answer RawCm::request(std::uint16_t port, std::uint32_t pair, std::span<const std::byte> said,
                             std::uint8_t tos) {
  rdma_cm_id* id = make_id();
  handshake::Endpoint from = *handshake::parse_endpoint(address_, 0), to = *handshake::parse_endpoint(address_, port);
  rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos);
  rdma_resolve_addr(id, address_in(from), address_in(to), kResolveMilliseconds);
  if (const Answer resolved = wait().first; resolved.event != RDMA_CM_EVENT_ADDR_RESOLVED) return resolved;
  rdma_resolve_route(id, kResolveMilliseconds);
  if (const Answer route = wait().first; route.event != RDMA_CM_EVENT_ROUTE_RESOLVED) return route;
  rdma_conn_param wanted = parameters(pair);
  wanted.private_data = said.data();
  wanted.private_data_len = static_cast<std::uint8_t>(said.size());
  EXPECT_EQ(rdma_connect(id, &wanted), 0);
  return wait().first;
}

std::uint16_t RawCm::listen() {
  rdma_cm_id* id = make_id();
  handshake::Endpoint here = *handshake::parse_endpoint(address_, 0);
  EXPECT_EQ(rdma_bind_addr(id, address_in(here)), 0);
  EXPECT_EQ(rdma_listen(id, 8), 0);
  return ntohs(rdma_get_src_port(id));
}

void RawCm::accept(std::uint32_t pair) {
  const auto [asked, id] = wait();
  ASSERT_EQ(asked.event, RDMA_CM_EVENT_CONNECT_REQUEST);
  ids_.push_back(id);
  rdma_conn_param mine = parameters(pair);
  EXPECT_EQ(rdma_accept(id, &mine), 0);
}

}  // namespace tensorlane::conformance
