#include "daemon/transport/rdma/queue_pair.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/transport/handshake/socket.h"

namespace tensorlane::rdma {
namespace {

constexpr int kWorkRequests = 2 * kSendSlots;  // a write in front of every message
constexpr int kCompletions = kWorkRequests + static_cast<int>(kReceiveSlots);
constexpr std::uint32_t kWantedInline = 128;         // a header and what is around it
constexpr std::uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr std::uint8_t kForever = 7;

// What the kernel says when it knows a way to an address, but not (yet) who is there: ib_resolve_eth_dmac() of ib_core
// waits a second for the neighbour's answer, then it is ETIMEDOUT. Without a way it says ENETUNREACH at once.
bool nobody_answered(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == EAGAIN;
}

}  // namespace

// ---- the table ----

std::uint32_t PairTable::add(QueuePair& pair) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  TL_ASSERT(index < 1u << kIndexBits);
  Slot& slot = slots_[index];
  slot.pair = &pair;
  slot.generation = (slot.generation + 1) & 0x7fff;
  return slot.generation << kIndexBits | index;
}

void PairTable::remove(std::uint32_t id) {
  const std::uint32_t index = id & ((1u << kIndexBits) - 1);
  slots_[index].pair = nullptr;
  free_.push_back(index);
}

QueuePair* PairTable::find(std::uint32_t id) const {
  const std::uint32_t index = id & ((1u << kIndexBits) - 1);
  if (index >= slots_.size() || slots_[index].generation != id >> kIndexBits) return nullptr;
  return slots_[index].pair;
}

// ---- making ----

QueuePair::QueuePair(Device& device, std::shared_ptr<Registrations> registrations, CompletionQueue& queue,
                     PairTable& table)
    : device_(device),
      registrations_(std::move(registrations)),
      queue_(queue),
      table_(table),
      id_(table.add(*this)),
      first_packet_(randombytes_uniform(1u << 24)),
      sends_(kSendSlots * kMessageBytes),
      receives_(kReceiveSlots * kMessageBytes) {}

Result<std::unique_ptr<QueuePair>> QueuePair::create(Device& device, std::shared_ptr<Registrations> registrations,
                                                     CompletionQueue& queue, PairTable& table) {
  std::unique_ptr<QueuePair> pair(new QueuePair(device, std::move(registrations), queue, table));
  TL_RETURN_IF_ERROR(pair->open());
  return pair;
}

Status QueuePair::open() {
  TL_RETURN_IF_ERROR(queue_.reserve(kCompletions));
  reserved_ = true;
  TL_ASSIGN_OR_RETURN(send_region_, registrations_->map_private(sends_));
  TL_ASSIGN_OR_RETURN(receive_region_, registrations_->map_private(receives_));
  ibv_qp_init_attr wanted{};
  wanted.send_cq = queue_.get();
  wanted.recv_cq = queue_.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {static_cast<std::uint32_t>(kWorkRequests), kReceiveSlots, 2, 1, kWantedInline};
  qp_ = ibv_create_qp(registrations_->domain(), &wanted);
  if (qp_ == nullptr) {
    return {Code::kResourceExhausted, "cannot make a queue pair: " + handshake::errno_text(errno), device_.name(),
            "raise the limit of locked memory, run fewer jobs at once, or set `rdma: queue_pairs` lower"};
  }
  max_inline_ = wanted.cap.max_inline_data;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_.port();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error =
      ibv_modify_qp(qp_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0)
    return {Code::kInternal, "cannot prepare a queue pair: " + handshake::errno_text(error), device_.name()};
  for (std::uint32_t i = 0; i < kReceiveSlots; ++i) TL_RETURN_IF_ERROR(post_receive(i));
  return {};
}

QueuePair::~QueuePair() {
  if (qp_ != nullptr) ibv_destroy_qp(qp_);
  if (reserved_) queue_.release(kCompletions);
  table_.remove(id_);
}

Status QueuePair::connect(const Link& link) const {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.ah_attr = link.address;
  a.path_mtu = link.mtu;
  a.dest_qp_num = link.peer;
  a.rq_psn = link.receive_first;
  a.max_dest_rd_atomic = 1;
  a.min_rnr_timer = kReceiverNotReadyTimer;
  int error = ibv_modify_qp(qp_, &a,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  const Status failed(Code::kUnavailable, "a queue pair has failed before it was connected", device_.name(),
                      "look at the kernel's log");
  if (error != 0) {
    GidBytes peer;
    std::copy(std::begin(a.ah_attr.grh.dgid.raw), std::end(a.ah_attr.grh.dgid.raw), peer.begin());
    if (nobody_answered(error)) return unresolved(peer, device_);
    if (in_error()) return failed;
    const Status no_way = unreachable(peer, handshake::errno_text(error), device_);
    return {Code::kMismatch, no_way.what(), no_way.where(), no_way.fix()};
  }
  a.qp_state = IBV_QPS_RTS;
  a.timeout = link.retries.timeout;
  a.retry_cnt = link.retries.count;
  a.rnr_retry = kForever;
  a.sq_psn = link.send_first;
  a.max_rd_atomic = 1;
  error = ibv_modify_qp(
      qp_, &a,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0 && in_error()) return failed;
  if (error != 0)
    return {Code::kInternal, "cannot start a queue pair: " + handshake::errno_text(error), device_.name()};
  return {};
}

bool QueuePair::in_error() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  return ibv_query_qp(qp_, &attributes, IBV_QP_STATE, &ignored) == 0 && attributes.qp_state == IBV_QPS_ERR;
}

int QueuePair::traffic_class() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  return ibv_query_qp(qp_, &attributes, IBV_QP_AV, &ignored) == 0 ? attributes.ah_attr.grh.traffic_class : -1;
}

// ---- sending ----

std::uint16_t QueuePair::take_owed() {
  const auto owed = static_cast<std::uint16_t>(owed_);
  owed_ = 0;
  return owed;
}

ibv_send_wr& QueuePair::next_request() {
  ibv_send_wr& request = requests_[pending_];
  request = {};
  request.sg_list = pieces_[pending_].data();
  if (pending_ > 0) requests_[pending_ - 1].next = &request;
  ++pending_;
  return request;
}

void QueuePair::push(std::size_t slot_bytes, const Gather& gather, const Write* write, std::uint32_t immediate,
                     const Note& note) {
  TL_ASSERT(room());
  --credits_;
  request_send(slot_bytes, gather, write, immediate, note);
}

void QueuePair::request_send(std::size_t slot_bytes, const Gather& gather, const Write* write, std::uint32_t immediate,
                             const Note& note) {
  const std::uint64_t id = WorkId{false, id_, head_}.pack();
  if (write != nullptr) {
    ibv_send_wr& request = next_request();
    request.wr_id = id;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.num_sge = 1;
    request.sg_list[0] = {reinterpret_cast<std::uintptr_t>(write->from.data()),
                          static_cast<std::uint32_t>(write->from.size()), write->from_key};
    request.wr.rdma.remote_addr = write->to.address;
    request.wr.rdma.rkey = write->to.key;
  }
  ibv_send_wr& request = next_request();
  request.wr_id = id;
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(immediate);
  request.num_sge = gather.bytes.empty() ? 1 : 2;
  request.sg_list[0] = {reinterpret_cast<std::uintptr_t>(slot().data()), static_cast<std::uint32_t>(slot_bytes),
                        send_region_->lkey};
  request.sg_list[1] = {reinterpret_cast<std::uintptr_t>(gather.bytes.data()),
                        static_cast<std::uint32_t>(gather.bytes.size()), gather.key};
  if (slot_bytes + gather.bytes.size() <= max_inline_) request.send_flags = IBV_SEND_INLINE;
  notes_[head_ % kSendSlots] = note;
  ++head_;
}

void QueuePair::push_credit() {
  MessageHead head{.kind = MessageKind::kCredit, .credits = take_owed()};
  std::memcpy(slot().data(), &head, sizeof head);
  request_send(sizeof head, {}, nullptr, 0, {});
}

Status QueuePair::submit() {
  if (pending_ == 0) return {};
  // The last one brings a completion for all before it.
  requests_[pending_ - 1].send_flags |= IBV_SEND_SIGNALED;
  pending_ = 0;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(qp_, requests_.data(), &bad);
  if (error == 0) return {};
  return {Code::kInternal, "cannot post a send: " + handshake::errno_text(error), device_.name(),
          "look at the kernel's log"};
}

std::optional<QueuePair::Note> QueuePair::completed(std::uint32_t position) {
  // Positions wrap; at most kSendSlots are out.
  if (position - tail_ >= head_ - tail_) return std::nullopt;
  return notes_[tail_++ % kSendSlots];
}

// ---- receiving ----

Status QueuePair::post_receive(std::uint32_t position) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(receives_.data() + position * kMessageBytes), kMessageBytes,
                receive_region_->lkey};
  ibv_recv_wr request{};
  request.wr_id = WorkId{true, id_, position}.pack();
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(qp_, &request, &bad); error != 0)
    return {Code::kInternal, "cannot post a receive: " + handshake::errno_text(error), device_.name()};
  ++posted_receives_;
  return {};
}

Status QueuePair::arrived(std::uint32_t position, std::size_t bytes) {
  --posted_receives_;
  TL_ASSERT(position < kReceiveSlots && bytes <= kMessageBytes);
  TL_ASSIGN_OR_RETURN(const Message message,
                      parse_message(std::span(receives_).subspan(position * kMessageBytes, bytes)));
  heard_ = true;
  credits_ += message.head.credits;
  if (credits_ > kCredits) return {Code::kCorrupt, fmt::format("gave {} credits, at most {}", credits_, kCredits)};
  if (message.head.kind == MessageKind::kCredit) return failed_ ? Status() : post_receive(position);
  arrived_[arrived_head_++ % kReceiveSlots] = {position, message};
  return {};
}

const Message* QueuePair::front() const {
  return arrived_head_ == arrived_tail_ ? nullptr : &arrived_[arrived_tail_ % kReceiveSlots].message;
}

void QueuePair::pop() {
  const Arrived& done = arrived_[arrived_tail_++ % kReceiveSlots];
  if (failed_) return;
  // An error here is of the device; it ends the pair by an event or a failed completion.
  if (post_receive(done.position).ok()) ++owed_;
}

// ---- the end ----

void QueuePair::fail() {
  if (failed_) return;
  failed_ = true;
  // Nothing that was pushed and not submitted will complete.
  while (pending_ > 0) {
    if (requests_[--pending_].opcode == IBV_WR_SEND_WITH_IMM) --head_;
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp_, &attributes, IBV_QP_STATE);
}

}  // namespace tensorlane::rdma
