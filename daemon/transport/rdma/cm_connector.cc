#include "daemon/transport/rdma/cm_connector.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::rdma {
namespace {

using handshake::errno_text;

constexpr int kResolveMilliseconds = 2000;
constexpr int kBacklog = 128;
constexpr std::size_t kEventsAtOnce = 64;  // of one serve(), however many requests strangers send
constexpr std::uint8_t kRetryForever = 7;
// Reasons of a rejection (InfiniBand specification, table "REJ reason codes").
constexpr int kNobodyListens = 8, kStale = 10, kRefused = 28;

constexpr const char* kUseVerbs = "or set `rdma: connect: verbs` in daemon.yaml";

// The address that a GID stands for. A link-local one needs the interface too.
Result<handshake::Endpoint> endpoint_of(const GidBytes& gid, std::uint16_t port, const std::string& interface) {
  TL_ASSIGN_OR_RETURN(handshake::Endpoint endpoint, handshake::parse_endpoint(address_of_gid(gid), port));
  auto* address = reinterpret_cast<sockaddr_in6*>(&endpoint.storage);
  if (endpoint.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr))
    address->sin6_scope_id = ::if_nametoindex(interface.c_str());
  return endpoint;
}

std::string peer_of(rdma_cm_id* id) {
  handshake::Endpoint endpoint;
  endpoint.length = sizeof endpoint.storage;
  std::memcpy(&endpoint.storage, rdma_get_peer_addr(id), sizeof id->route.addr.dst_storage);
  return endpoint.text();
}

// rdma_cm chooses a device by the address; the queue pairs are on ours.
Status check_device(const rdma_cm_id* id, const Device& device) {
  const std::string chosen = id->verbs == nullptr ? "no device" : ibv_get_device_name(id->verbs->device);
  const std::string link = fmt::format("{}/{}", chosen, id->port_num);
  if (link == device.link()) return {};
  return {Code::kMismatch, fmt::format("rdma_cm uses {} for the address {}", link, address_of_gid(device.gid().gid)),
          device.name(), fmt::format("leave out `rdma: device` and `rdma: port`, {}", kUseVerbs)};
}

std::string why_rejected(int reason) {
  switch (reason) {
    case kNobodyListens:
      return "nobody there takes requests of rdma_cm";
    case kStale:
      return "rdma_cm there still holds an older connection of the same queue pair";
    case kRefused:
      return "it refused the request of rdma_cm (its log says why)";
    default:
      return fmt::format("rdma_cm there rejected the request for reason {}", reason);
  }
}

std::string why_failed(const rdma_cm_event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return "rdma_cm resolves no address: " + errno_text(-event.status);
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return "rdma_cm finds no route: " + errno_text(-event.status);
    case RDMA_CM_EVENT_REJECTED:
      return why_rejected(event.status);
    default:
      return fmt::format("rdma_cm said {} ({})", rdma_event_str(event.event), event.status);
  }
}

}  // namespace

// One queue pair on its way. rdma_cm's id names this object while it is.
class CmPair {
 public:
  CmPair(CmConnector& connector, const Meeting& meeting, QueuePair& pair, std::uint32_t theirs)
      : connector_(connector), meeting_(meeting), pair_(pair), theirs_(theirs) {}
  ~CmPair() { forget(); }
  CmPair(const CmPair&) = delete;
  CmPair& operator=(const CmPair&) = delete;

  const ports::FlowKey& flow() const { return meeting_.flow; }
  std::uint32_t theirs() const { return theirs_; }
  handshake::Mac proof() const { return cm_proof(meeting_.secret, accepting_number()); }
  // Errors: those of done().
  Status begin();
  void on_event(const rdma_cm_event& event);
  // The accepting end: the request for this pair has come.
  void accept(CmId id);
  Result<bool> done() const {
    if (!failure_.ok()) return failure_;
    return connected_;
  }

 private:
  std::uint32_t number() const { return pair_.parameters().number; }
  std::uint32_t accepting_number() const { return meeting_.connecting_end ? theirs_ : number(); }
  Status resolve_address();
  Status advance(const rdma_cm_event& event);
  Status request();
  Status connect();
  Result<Link> link() const;
  Status check(const Link& link) const;
  rdma_conn_param parameters() const;
  Status failed(const char* what) const;
  Status gone_or_failed(const char* what) const;
  void hand_over();
  void forget();

  CmConnector& connector_;
  const Meeting meeting_;
  QueuePair& pair_;
  const std::uint32_t theirs_;
  CmId id_;
  rdma_cm_event_type expected_ = RDMA_CM_EVENT_ADDR_RESOLVED;  // of the connecting end, in this order
  bool connected_ = false;
  Status failure_;
};

// ---- one pair ----

Status CmPair::begin() {
  if (meeting_.connecting_end) return resolve_address();
  connector_.awaited_[number()] = this;
  return {};
}

void CmPair::forget() {
  const auto found = connector_.awaited_.find(number());
  if (found != connector_.awaited_.end() && found->second == this) connector_.awaited_.erase(found);
}

Status CmPair::failed(const char* what) const {
  const int error = errno;
  return {Code::kInternal, fmt::format("{} failed: {}", what, errno_text(error)), connector_.device_.name(),
          fmt::format("look at the kernel's log, {}", kUseVerbs)};
}

// Of a call about a connection that the peer has agreed to: where it is in no state for that, the peer has gone since.
Status CmPair::gone_or_failed(const char* what) const {
  if (errno != EINVAL) return failed(what);
  return unreachable(meeting_.path.peer, "the peer has closed rdma_cm's connection", connector_.device_);
}

Status CmPair::resolve_address() {
  TL_ASSIGN_OR_RETURN(id_, connector_.make_id(this));
  std::uint8_t tos = meeting_.path.traffic_class();
  if (rdma_set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) != 0)
    return failed("rdma_set_option(TOS)");
  const GidEntry& gid = connector_.device_.gid();
  TL_ASSIGN_OR_RETURN(handshake::Endpoint from, endpoint_of(gid.gid, 0, gid.interface));
  TL_ASSIGN_OR_RETURN(handshake::Endpoint to, endpoint_of(meeting_.path.peer, meeting_.theirs.cm_port, gid.interface));
  if (rdma_resolve_addr(id_.get(), reinterpret_cast<sockaddr*>(&from.storage), reinterpret_cast<sockaddr*>(&to.storage),
                        kResolveMilliseconds) != 0)
    return unreachable(meeting_.path.peer, "rdma_cm resolves no address: " + errno_text(errno), connector_.device_);
  return {};
}

void CmPair::on_event(const rdma_cm_event& event) {
  if (connected_ || !failure_.ok()) return;
  if (event.event == expected_) {
    failure_ = advance(event);
  } else {
    failure_ = unreachable(meeting_.path.peer, why_failed(event), connector_.device_);
  }
}

Status CmPair::advance(const rdma_cm_event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      TL_RETURN_IF_ERROR(check_device(id_.get(), connector_.device_));
      expected_ = RDMA_CM_EVENT_ROUTE_RESOLVED;
      return rdma_resolve_route(id_.get(), kResolveMilliseconds) == 0 ? Status() : failed("rdma_resolve_route");
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      expected_ = RDMA_CM_EVENT_CONNECT_RESPONSE;
      return request();
    default:
      TL_RETURN_IF_ERROR(connect());
      if (rdma_establish(id_.get()) != 0) return gone_or_failed("rdma_establish");
      hand_over();
      return {};
  }
}

rdma_conn_param CmPair::parameters() const {
  rdma_conn_param parameters{};
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = meeting_.path.retries.count;
  parameters.rnr_retry_count = kRetryForever;
  parameters.qp_num = number();
  return parameters;
}

Status CmPair::request() {
  const CmRequest request{.pair = theirs_, .proof = proof()};
  rdma_conn_param wanted = parameters();
  wanted.private_data = &request;
  wanted.private_data_len = sizeof request;
  return rdma_connect(id_.get(), &wanted) == 0 ? Status() : failed("rdma_connect");
}

void CmPair::accept(CmId id) {
  forget();  // a request is good once
  id_ = std::move(id);
  failure_ = check_device(id_.get(), connector_.device_);
  if (failure_.ok()) failure_ = connect();
  if (!failure_.ok()) {
    rdma_reject(id_.get(), nullptr, 0);
    return;
  }
  rdma_conn_param mine = parameters();
  if (rdma_accept(id_.get(), &mine) != 0) {
    failure_ = failed("rdma_accept");
  } else {
    hand_over();
  }
}

// Brings the queue pair up by what rdma_cm says of the way to the peer.
Status CmPair::connect() {
  TL_ASSIGN_OR_RETURN(const Link found, link());
  TL_RETURN_IF_ERROR(check(found));
  // rdma_cm has just found the address, so the kernel knows the neighbour and this does not wait for an answer.
  TL_RETURN_IF_ERROR(pair_.connect(found));
  pair_.connected(found);
  return {};
}

Result<Link> CmPair::link() const {
  ibv_qp_attr attributes{};
  int mask = 0;
  attributes.qp_state = IBV_QPS_RTR;
  if (rdma_init_qp_attr(id_.get(), &attributes, &mask) != 0) return gone_or_failed("rdma_init_qp_attr(RTR)");
  Link link;
  link.address = attributes.ah_attr;
  // The one of this address that the device was chosen by: rdma_cm may have another one of the same address.
  link.address.grh.sgid_index = static_cast<std::uint8_t>(connector_.device_.gid().index);
  link.peer = attributes.dest_qp_num;
  link.receive_first = attributes.rq_psn;
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  if (rdma_init_qp_attr(id_.get(), &attributes, &mask) != 0) return gone_or_failed("rdma_init_qp_attr(RTS)");
  link.send_first = attributes.sq_psn;
  link.mtu = meeting_.path.mtu;
  link.retries = meeting_.path.retries;
  return link;
}

// Requests and replies prove nothing by themselves, and flow where anybody on the network may write.
Status CmPair::check(const Link& link) const {
  const std::string& where = connector_.device_.name();
  GidBytes gid;
  std::copy(std::begin(link.address.grh.dgid.raw), std::end(link.address.grh.dgid.raw), gid.begin());
  if (link.peer != theirs_ || gid != meeting_.path.peer) {
    return {Code::kMismatch,
            fmt::format("rdma_cm leads to queue pair {} of {}, the handshake to {} of {}", link.peer,
                        address_of_gid(gid), theirs_, address_of_gid(meeting_.path.peer)),
            where, "look for hosts with the same address"};
  }
  if (link.address.grh.traffic_class != meeting_.path.traffic_class()) {
    return {Code::kMismatch,
            fmt::format("rdma_cm marks packets with traffic class {}, the class of the flow has {}",
                        link.address.grh.traffic_class, meeting_.path.traffic_class()),
            where, fmt::format("use a kernel whose rdma_cm heeds the TOS, {}", kUseVerbs)};
  }
  return {};
}

// What comes of the connection from now on is the queue pair's and the handshake's connection's to find out.
void CmPair::hand_over() {
  id_->context = nullptr;
  pair_.keep(std::shared_ptr<rdma_cm_id>(std::move(id_)));
  connected_ = true;
}

// ---- one flow ----

namespace {

class CmConnecting final : public Connecting {
 public:
  explicit CmConnecting(QueuePairs pairs) : queue_pairs_(std::move(pairs)) {}
  Status begin(CmConnector& connector, const Meeting& meeting) {
    for (std::size_t i = 0; i < queue_pairs_.size(); ++i) {
      const std::uint32_t theirs = meeting.theirs.pairs[i].number;
      pairs_.push_back(std::make_unique<CmPair>(connector, meeting, *queue_pairs_[i], theirs));
      TL_RETURN_IF_ERROR(pairs_.back()->begin());
    }
    return {};
  }
  Result<bool> done() override {
    bool all = true;
    for (const auto& pair : pairs_) {
      TL_ASSIGN_OR_RETURN(const bool one, pair->done());
      all = all && one;
    }
    return all;
  }
  QueuePairs take_pairs() override {
    pairs_.clear();
    return std::move(queue_pairs_);
  }

 private:
  QueuePairs queue_pairs_;
  std::vector<std::unique_ptr<CmPair>> pairs_;  // of those
};

}  // namespace

// ---- all flows ----

Result<std::unique_ptr<CmConnector>> CmConnector::open(const Device& device, PairEvents& events) {
  std::unique_ptr<CmConnector> connector(new CmConnector(device, events));
  TL_RETURN_IF_ERROR(connector->listen());
  return connector;
}

Result<CmId> CmConnector::make_id(void* context) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel_.get(), &id, context, RDMA_PS_TCP) == 0) return CmId(id);
  return Status(Code::kResourceExhausted, "cannot make an id of rdma_cm: " + errno_text(errno), device_.name(),
                fmt::format("run fewer jobs at once, {}", kUseVerbs));
}

Status CmConnector::listen() {
  channel_.reset(rdma_create_event_channel());
  if (!channel_) {
    const bool denied = errno == EACCES || errno == EPERM;
    return {denied ? Code::kPermissionDenied : Code::kUnavailable, "cannot use rdma_cm: " + errno_text(errno),
            device_.name(),
            fmt::format("{}, {}", denied ? "let the daemon's user open /dev/infiniband/rdma_cm" : "modprobe rdma_ucm",
                        kUseVerbs)};
  }
  ::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  TL_ASSIGN_OR_RETURN(listener_, make_id(nullptr));
  TL_ASSIGN_OR_RETURN(handshake::Endpoint here, endpoint_of(device_.gid().gid, 0, device_.gid().interface));
  if (rdma_bind_addr(listener_.get(), reinterpret_cast<sockaddr*>(&here.storage)) != 0 ||
      rdma_listen(listener_.get(), kBacklog) != 0) {
    return {Code::kUnavailable,
            fmt::format("rdma_cm takes no requests at {}: {}", address_of_gid(device_.gid().gid), errno_text(errno)),
            device_.name(), fmt::format("look at the kernel's log, {}", kUseVerbs)};
  }
  return check_device(listener_.get(), device_);
}

void CmConnector::offer(Parameters& mine) const {
  mine.connect_by = ConnectBy::kCm;
  mine.cm_port = ntohs(rdma_get_src_port(listener_.get()));
}

Result<std::unique_ptr<Connecting>> CmConnector::connect(const Meeting& meeting, QueuePairs pairs) {
  auto connecting = std::make_unique<CmConnecting>(std::move(pairs));
  TL_RETURN_IF_ERROR(connecting->begin(*this, meeting));
  return std::unique_ptr<Connecting>(std::move(connecting));
}

void CmConnector::serve() {
  rdma_cm_event* raw = nullptr;
  for (std::size_t i = 0; i < kEventsAtOnce && rdma_get_cm_event(channel_.get(), &raw) == 0; ++i) {
    const rdma_cm_event event = *raw;
    if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      const auto* said = static_cast<const std::byte*>(event.param.conn.private_data);
      const std::vector<std::byte> request(said, said + event.param.conn.private_data_len);
      rdma_ack_cm_event(raw);
      take_request(CmId(event.id), request, event.param.conn.qp_num);
      continue;
    }
    rdma_ack_cm_event(raw);  // before the id may go: that waits for it
    auto* pair = static_cast<CmPair*>(event.id->context);
    if (pair == nullptr) continue;
    pair->on_event(event);
    events_.on_moved(ports::FlowKey(pair->flow()));  // the pair may go in it
  }
}

void CmConnector::take_request(CmId id, std::span<const std::byte> request, std::uint32_t from) {
  const Result<CmPair*> pair = find(request, from);
  if (pair.ok()) return (*pair)->accept(std::move(id));
  const Status& why = pair.status();
  events_.on_request_refused({why.code(),
                              fmt::format("request of rdma_cm from {} was refused: {}", peer_of(id.get()), why.what()),
                              device_.name(), why.fix()});
  rdma_reject(id.get(), nullptr, 0);
}

Result<CmPair*> CmConnector::find(std::span<const std::byte> request, std::uint32_t from) const {
  constexpr const char* kLetOnlyUs = "let only tensorlaned use the hosts' RDMA devices, or find out who else does";
  TL_ASSIGN_OR_RETURN(const CmRequest asked, parse_cm_request(request));
  const auto found = awaited_.find(asked.pair);
  if (found == awaited_.end())
    return Status(Code::kPermissionDenied, fmt::format("nobody waits for it at queue pair {}", asked.pair), {},
                  kLetOnlyUs);
  if (!handshake::same_mac(found->second->proof(), asked.proof))
    return Status(Code::kPermissionDenied, "it does not prove that its sender holds the job's secret", {}, kLetOnlyUs);
  if (from != found->second->theirs()) {
    return Status(Code::kPermissionDenied,
                  fmt::format("it is from queue pair {}, the handshake was for {}", from, found->second->theirs()), {},
                  kLetOnlyUs);
  }
  return found->second;
}

}  // namespace tensorlane::rdma
