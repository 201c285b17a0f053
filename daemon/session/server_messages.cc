// What clients say and what they are answered.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "common/protocol/exchange.h"
#include "daemon/session/server.h"

namespace tensorlane::session {
namespace {

using protocol::MessageType;

// Socket, process and eventfd; one more of its rings goes with them.
constexpr std::uint64_t kSessionDescriptors = 3;

// Ids of a group are answered in one packet.
constexpr std::size_t kMaxGroupTensors =
    (protocol::kMaxMessage - sizeof(protocol::MessageHeader) - sizeof(protocol::RegisteredBody)) /
    sizeof(std::uint32_t);

template <typename T>
std::span<const std::byte> bytes_of(const T& body) {
  return std::as_bytes(std::span(&body, 1));
}

Status unexpected(const Packet& packet) {
  return Status(Code::kCorrupt, "a message that does not belong here",
                "type " + std::to_string(static_cast<unsigned>(packet.header.type)),
                "use a client library of the daemon's version");
}

// The buffer of `rank` in a world of that size.
Status inside_arena(Session& session, std::uint32_t world_size, std::uint32_t rank,
                    const protocol::TensorBody& tensor) {
  if (tensor.operation == Operation::kBarrier) return {};
  const ports::BufferPlace place{tensor.segment, tensor.offset, protocol::buffer_bytes(tensor, world_size, rank)};
  if (!session.map(place).empty()) return {};
  return Status(Code::kInvalidArgument, std::string("tensor '") + tensor.name + "' cannot be registered",
                "its buffer is not inside segment " + std::to_string(tensor.segment) + " of its arenas (offset " +
                    std::to_string(tensor.offset) + ", " + std::to_string(place.bytes) + " bytes)",
                "register memory of tl_alloc");
}

}  // namespace

Status SessionServer::handle(Connection& c, std::span<const std::byte> bytes) {
  TL_ASSIGN_OR_RETURN(const Packet packet, parse_packet(bytes));
  const MessageType type = packet.header.type;
  if (type == MessageType::kStatus && c.phase != Phase::kJoining) return handle_status(c, packet);
  if (type == MessageType::kAsk && c.phase != Phase::kJoining) return handle_ask(c, packet);
  switch (c.phase) {
    case Phase::kNew:
      return type == MessageType::kHello ? handle_hello(c, packet) : unexpected(packet);
    case Phase::kJoining:
    case Phase::kLeaving:
      return unexpected(packet);
    case Phase::kOpen:
      if (type == MessageType::kArena) return handle_arena(c, packet);
      if (type == MessageType::kRegister) return handle_register(c, packet);
      if (type == MessageType::kUnregister) return handle_unregister(c, packet);
      if (type == MessageType::kGoodbye) return handle_goodbye(c, packet);
      return type == MessageType::kOverdue ? handle_overdue(c, packet) : unexpected(packet);
    case Phase::kFailed:
      if (type == MessageType::kOverdue) return {};  // it is told why as it is
      if (type == MessageType::kArena || type == MessageType::kRegister || type == MessageType::kUnregister)
        return c.send_error(packet.header.request, c.failure);
      if (type == MessageType::kGoodbye) return handle_goodbye(c, packet);
      return unexpected(packet);
  }
  return unexpected(packet);
}

Result<Ledger::Charge> SessionServer::take(const Connection& c, Account account, std::uint64_t amount) {
  Result<Ledger::Charge> charge = ledgers_[account]->take(c.owner(), amount);
  if (charge.ok() || account != kSegments || !pool_.has_leftovers()) return charge;
  pool_.reclaim();  // a client may have let go of its last segments just now
  return ledgers_[account]->take(c.owner(), amount);
}

// A session's memory, and what it takes beside it.
Result<std::shared_ptr<Session>> SessionServer::make_session(const Connection& c) {
  TL_ASSIGN_OR_RETURN(Ledger::Charge one, take(c, kSessions, 1));
  TL_ASSIGN_OR_RETURN(Ledger::Charge descriptors, take(c, kDescriptors, kSessionDescriptors));
  TL_ASSIGN_OR_RETURN(Ledger::Charge descriptor_of_rings, take(c, kDescriptors, 1));
  TL_ASSIGN_OR_RETURN(Ledger::Charge rings, take(c, kSegments, 1));
  auto broken = [queue = std::weak_ptr(calls_), this, id = c.id](Status why) {
    // The session may outlive the server, whose thread alone runs what is queued.
    const std::shared_ptr<CallQueue> alive = queue.lock();
    if (alive == nullptr) return;
    alive->push([this, id, why = std::move(why)] {
      Connection* connection = find(id);
      if (connection == nullptr) return;
      end(*connection, Status(why.code(), connection->who() + " wrote rubbish into its rings: " + why.what(),
                              why.where(), "look for stray writes in that process"));
    });
  };
  TL_ASSIGN_OR_RETURN(std::shared_ptr<Session> session,
                      Session::create(pool_, c.owner(), config_.ring_entries, std::move(broken)));
  session->set_process(c.pid);
  session->hold(kSessions, std::move(one));
  session->hold(kDescriptors, std::move(descriptors));
  session->ring_memory().hold_descriptor(std::move(descriptor_of_rings));
  session->ring_memory().hold(std::move(rings));
  return session;
}

Status SessionServer::handle_hello(Connection& c, const Packet& packet) {
  TL_ASSIGN_OR_RETURN(Hello hello, parse_hello(packet.body));
  c.hello.job = hello.job;  // whom the session is charged to
  TL_ASSIGN_OR_RETURN(c.session, make_session(c));
  c.hello = hello;
  c.pending.release();
  c.phase = Phase::kJoining;
  c.hello_request = packet.header.request;
  if (c.pid != 0) c.process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, c.pid, 0)));
  if (c.process) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = c.id | kProcessToken;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c.process.get(), &event) != 0) c.process.reset();
  }
  ports::JoinRequest request;
  request.session = ports::SessionId(c.id);
  request.job = std::move(hello.job);
  request.leader = std::move(hello.leader);
  request.leader_port = hello.leader_port;
  request.rank = hello.rank;
  request.world_size = hello.world_size;
  request.local_rank = hello.local_rank;
  request.local_world_size = hello.local_world_size;
  request.uid = c.uid;
  request.pid = c.pid;
  request.timeout = hello.timeout;
  request.secret = std::move(hello.secret);
  request.client = c.session;
  if (!c.hello.secret.empty())
    explicit_bzero(c.hello.secret.data(), c.hello.secret.size());  // control's copy is the only one
  c.hello.secret.clear();
  control_->join(std::move(request));
  return {};
}

void SessionServer::on_joined(std::uint64_t id, const Result<ports::JoinInfo>& info) {
  Connection* c = find(id);
  if (c == nullptr || c->phase != Phase::kJoining) return;
  if (!info.ok()) {
    const Code code = info.status().code();
    // Of the others the log tells once, when their job fails.
    if (code != Code::kTimedOut && code != Code::kUnavailable && code != Code::kAborted)
      note_refused(*c, info.status(), now());
    c->phase = Phase::kNew;  // control does not know it any more
    end(*c, info.status());
    return;
  }
  c->phase = Phase::kOpen;
  c->detection = info->detection;
  protocol::WelcomeBody body;
  body.ring_entries = c->session->ring_entries();
  body.epoch = info->epoch.value;
  body.hosts = info->hosts;
  body.host_index = info->host_index.value;
  body.detection_seconds = to_seconds(info->detection);
  info->host.copy(body.host, protocol::kMaxName);
  const Result<int> rings = c->session->ring_memory().share();
  if (!rings.ok()) return end(*c, rings.status());
  const UniqueFd shared(*rings);
  const std::array<int, 2> fds = {shared.get(), c->session->wake_fd()};
  settle(*c, c->send(MessageType::kWelcome, c->hello_request, bytes_of(body), fds));
}

Status SessionServer::handle_arena(Connection& c, const Packet& packet) {
  const std::uint32_t request = packet.header.request;
  const Result<std::uint64_t> bytes = parse_arena(packet.body);
  if (!bytes.ok())
    return bytes.status().code() == Code::kCorrupt ? bytes.status() : c.send_error(request, bytes.status());
  if (c.arena_requests >= Connection::kMaxArenaRequests) {
    return c.send_error(
        request, Status(Code::kResourceExhausted, "too many arena requests at once",
                        "the limit is " + std::to_string(Connection::kMaxArenaRequests), "wait for an answer first"));
  }
  const std::uint64_t used = c.session->arena_bytes() + c.arenas_coming, limit = config_.arena_per_session.value;
  if (*bytes > limit || used > limit - *bytes) {
    const auto mib_text = [](std::uint64_t n) { return std::to_string((n + (1 << 20) - 1) >> 20) + " MiB"; };
    return c.send_error(request, Status(Code::kResourceExhausted, "arenas over the limit of one session",
                                        mib_text(*bytes) + " needed, " + mib_text(used) +
                                            " of arena_limit = " + mib_text(limit) + " in use",
                                        "raise arena_limit or register less"));
  }
  Result<Ledger::Charge> descriptor = take(c, kDescriptors, 1), number = take(c, kSegments, 1);
  if (!descriptor.ok()) return c.send_error(request, descriptor.status());
  if (!number.ok()) return c.send_error(request, number.status());
  // Carried along, so that they go back if the session goes meanwhile.
  const auto charges = std::make_shared<SegmentCharges>(SegmentCharges{std::move(*descriptor), std::move(*number)});
  ++c.arena_requests;
  c.arenas_coming += *bytes;
  using Made = std::optional<Result<std::shared_ptr<ports::SharedMemory>>>;
  worker_->push(
      c.uid, [this, id = c.id, request, owner = c.owner(), need = *bytes, charges, made = std::make_shared<Made>()] {
        if (!*made) *made = pool_.make(owner, need);
        if ((*made)->ok()) {
          const Result<bool> there = (***made)->populate(ports::SharedMemoryPool::kAtOnce);
          if (there.ok() && !*there) return false;
          if (!there.ok()) *made = there.status();
        }
        calls_->push(
            [this, id, request, need, made, charges] { on_segment(id, request, need, std::move(**made), *charges); });
        return true;
      });
  return {};
}

// Gigabytes take long to be given back.
void SessionServer::drop(Result<std::shared_ptr<ports::SharedMemory>> segment) {
  disposer_->push(0, [segment = std::move(segment)] { return true; });
}

void SessionServer::on_segment(std::uint64_t id, std::uint32_t request, std::uint64_t asked,
                               Result<std::shared_ptr<ports::SharedMemory>> segment, SegmentCharges& charges) {
  Connection* c = find(id);
  if (c == nullptr) return drop(std::move(segment));
  --c->arena_requests;
  c->arenas_coming -= asked;
  if (!segment.ok()) return settle(*c, c->send_error(request, segment.status()));
  (*segment)->hold_descriptor(std::move(charges.descriptor));
  (*segment)->hold(std::move(charges.number));
  const Result<int> descriptor = (*segment)->share();
  if (!descriptor.ok()) {
    drop(std::move(segment));
    return settle(*c, c->send_error(request, descriptor.status()));
  }
  const UniqueFd shared(*descriptor);
  const Result<std::uint32_t> number = c->session->add_segment(*segment);
  if (!number.ok()) {
    drop(std::move(segment));
    return settle(*c, c->send_error(request, number.status()));
  }
  protocol::ArenaBody body;
  body.segment = *number;
  body.bytes = (*segment)->bytes().size();
  const int fd = shared.get();
  settle(*c, c->send(MessageType::kArena, request, bytes_of(body), std::span(&fd, 1)));
}

Status SessionServer::handle_register(Connection& c, const Packet& packet) {
  Result<Registration> parsed = parse_register(packet.body);
  if (!parsed.ok()) {
    // A name that will not do costs the client this call; without its other fields the packet cannot be joined with the
    // next.
    if (parsed.status().code() != Code::kInvalidArgument || c.group) return parsed.status();
    return c.send_error(packet.header.request, parsed.status());
  }
  const bool more = parsed->more;
  if (!c.group) {
    c.group.emplace();
    c.group->request = packet.header.request;
    c.group->group = parsed->group;
    c.group->ranks = std::move(parsed->ranks);
    c.group->error = check_set(c);
  } else if (!parsed->ranks.empty()) {
    return Status(Code::kCorrupt, "ranks of a process set in the middle of a registration",
                  "group '" + parsed->group + "'", "use a client library of the daemon's version");
  }
  TL_RETURN_IF_ERROR(c.group->request == packet.header.request && c.group->group == parsed->group
                         ? Status()
                         : Status(Code::kCorrupt, "a registration inside another one",
                                  "group '" + parsed->group + "' inside '" + c.group->group + "'",
                                  "use a client library of the daemon's version"));
  if (c.group->error.ok()) c.group->error = add_to_group(c, *std::move(parsed));
  if (more) return {};
  PendingGroup group = *std::exchange(c.group, std::nullopt);
  if (!group.error.ok()) return c.send_error(group.request, group.error);
  Result<Ledger::Charge> question = requests_.take(c.owner(), 1);
  if (!question.ok()) return c.send_error(group.request, question.status());
  if (!c.questions.try_emplace(group.request, std::move(*question), std::move(group.charge)).second) {
    return Status(Code::kCorrupt, "two registrations under way with one number", std::to_string(group.request),
                  "use a client library of the daemon's version");
  }
  ++c.registrations;
  c.tensors += static_cast<std::uint32_t>(group.tensors.size());
  control_->register_group(ports::SessionId(c.id), group.request, std::move(group.group), std::move(group.tensors),
                           std::move(group.ranks));
  return {};
}

// The process set of a registration that begins.
Status SessionServer::check_set(const Connection& c) const {
  const std::vector<std::uint32_t>& ranks = c.group->ranks;
  if (ranks.empty()) return {};
  const auto refused = [&](std::uint32_t rank, const std::string& what, const char* fix) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + what, "group '" + c.group->group + "'", fix);
  };
  if (ranks.back() >= c.hello.world_size) {
    return refused(ranks.back(), " is not in a job of " + std::to_string(c.hello.world_size),
                   "use ranks of the job in a process set");
  }
  if (!std::ranges::binary_search(ranks, c.hello.rank)) {
    return refused(c.hello.rank, " is not in the process set that it registers for",
                   "leave the registration out on ranks that are not in the set");
  }
  return {};
}

Status SessionServer::add_to_group(Connection& c, Registration registration) {
  std::vector<protocol::TensorBody>& tensors = c.group->tensors;
  const auto exhausted = [&](const char* what, std::size_t limit) {
    return Status(Code::kResourceExhausted, what,
                  "group '" + c.group->group + "': the limit is " + std::to_string(limit), "register fewer tensors");
  };
  if (c.registrations >= Connection::kMaxRegistrations)
    return exhausted("too many registrations under way", Connection::kMaxRegistrations);
  if (tensors.size() + registration.tensors.size() > kMaxGroupTensors)
    return exhausted("too many tensors in one group", kMaxGroupTensors);
  if (c.tensors + tensors.size() + registration.tensors.size() > Connection::kMaxTensors) {
    return exhausted("too many tensors in one session", Connection::kMaxTensors);
  }
  Result<Ledger::Charge> charge = take(c, kTensors, registration.tensors.size());
  if (!charge.ok()) {
    const Status& full = charge.status();
    const bool says_whose = full.where().find("user ") != std::string::npos;
    const std::string has =
        "; user " + std::to_string(c.uid) + " has " + std::to_string(ledgers_[kTensors]->in_use_by(c.uid)) + " of them";
    const Status refused(full.code(), full.what(), full.where() + (says_whose ? "" : has), full.fix());
    note_refused(c, refused, now());
    return refused;
  }
  c.group->charge.add(std::move(*charge));
  const std::vector<std::uint32_t>& ranks = c.group->ranks;
  const auto world_size = ranks.empty() ? c.hello.world_size : static_cast<std::uint32_t>(ranks.size());
  const auto place = std::ranges::lower_bound(ranks, c.hello.rank) - ranks.begin();
  const std::uint32_t rank = ranks.empty() ? c.hello.rank : static_cast<std::uint32_t>(place);
  for (const protocol::TensorBody& tensor : registration.tensors) {
    TL_RETURN_IF_ERROR(check_tensor(tensor, world_size));
    TL_RETURN_IF_ERROR(inside_arena(*c.session, world_size, rank, tensor));
    if (tensor.operation != Operation::kBarrier) TL_RETURN_IF_ERROR(c.session->check_sealed(tensor.segment));
    tensors.push_back(tensor);
  }
  return {};
}

void SessionServer::on_registered(std::uint64_t id, std::uint32_t request, const Result<std::vector<TensorId>>& ids) {
  Connection* c = find(id);
  if (c == nullptr) return;
  if (c->registrations > 0) --c->registrations;
  Ledger::Charge tensors;
  if (auto question = c->questions.extract(request); !question.empty()) tensors = std::move(question.mapped().tensors);
  if (!ids.ok()) {
    c->tensors -= static_cast<std::uint32_t>(tensors.amount());
    return settle(*c, c->send_error(request, ids.status()));
  }
  c->session->hold(kTensors, std::move(tensors));
  protocol::RegisteredBody head;
  head.count = static_cast<std::uint32_t>(ids->size());
  std::vector<std::byte> body(sizeof head + ids->size() * sizeof(std::uint32_t));
  std::memcpy(body.data(), &head, sizeof head);
  for (std::size_t i = 0; i < ids->size(); ++i) {
    std::memcpy(body.data() + sizeof head + i * sizeof(std::uint32_t), &(*ids)[i].value, sizeof(std::uint32_t));
  }
  settle(*c, c->send(MessageType::kRegistered, request, body));
}

Status SessionServer::handle_overdue(Connection& c, const Packet& packet) {
  const auto question = c.questions.find(packet.header.request);
  if (question == c.questions.end()) return {};  // the answer is on its way
  if (!std::exchange(question->second.overdue, true)) control_->overdue(ports::SessionId(c.id), packet.header.request);
  return {};
}

Status SessionServer::handle_unregister(Connection& c, const Packet& packet) {
  const std::uint32_t request = packet.header.request;
  Result<Unregistration> parsed = parse_unregister(packet.body);
  if (!parsed.ok())
    return parsed.status().code() == Code::kCorrupt ? parsed.status() : c.send_error(request, parsed.status());
  if (c.registrations >= Connection::kMaxRegistrations) {
    return c.send_error(
        request, Status(Code::kResourceExhausted, "too many registrations under way",
                        "the limit is " + std::to_string(Connection::kMaxRegistrations), "wait for an answer first"));
  }
  Result<Ledger::Charge> question = requests_.take(c.owner(), 1);
  if (!question.ok()) return c.send_error(request, question.status());
  if (!c.questions.try_emplace(request, std::move(*question), Ledger::Charge()).second) {
    return Status(Code::kCorrupt, "two questions under way with one number", std::to_string(request),
                  "use a client library of the daemon's version");
  }
  ++c.registrations;
  control_->unregister_group(ports::SessionId(c.id), request, std::move(parsed->group), parsed->operations,
                             parsed->for_good ? ports::kForGood : parsed->timeout);
  return {};
}

void SessionServer::on_unregistered(std::uint64_t id, std::uint32_t request, const Result<std::uint32_t>& tensors) {
  Connection* c = find(id);
  if (c == nullptr) return;
  if (c->registrations > 0) --c->registrations;
  c->questions.erase(request);
  if (!tensors.ok()) return settle(*c, c->send_error(request, tensors.status()));
  c->tensors -= std::min(c->tensors, *tensors);
  c->session->give_back(kTensors, *tensors);
  settle(*c, c->send(MessageType::kUnregistered, request, {}));
}

Status SessionServer::handle_status(Connection& c, const Packet& packet) {
  TL_ASSIGN_OR_RETURN(const std::uint64_t offset, parse_status(packet.body));
  if (offset != 0 && offset < c.status.size()) return c.send_status_page(packet.header.request, offset);
  if (offset != 0) {
    return c.send_error(packet.header.request,
                        Status(Code::kInvalidArgument, "the status has no such page",
                               "offset " + std::to_string(offset), "ask for the first page, then for the next ones"));
  }
  if (const Status busy = begin_question(c); !busy.ok()) return c.send_error(packet.header.request, busy);
  control_->status(ports::SessionId(c.id), c.uid, packet.header.request);
  return {};
}

Status SessionServer::handle_ask(Connection& c, const Packet& packet) {
  TL_ASSIGN_OR_RETURN(std::string question, parse_ask(packet.body));
  if (const Status busy = begin_question(c); !busy.ok()) return c.send_error(packet.header.request, busy);
  control_->ask(ports::SessionId(c.id), c.uid, packet.header.request, std::move(question));
  return {};
}

// One of a client at a time.
Status SessionServer::begin_question(Connection& c) {
  if (c.status_asked.has_value())
    return {Code::kResourceExhausted, "a question of this session is under way", "", "wait for its answer first"};
  TL_ASSIGN_OR_RETURN(Ledger::Charge question, requests_.take(c.owner(), 1));
  c.drop_status();
  c.status_asked = std::move(question);
  return {};
}

Status SessionServer::handle_goodbye(Connection& c, const Packet& packet) {
  if (c.phase == Phase::kFailed) {
    // The lane keeps what it still uses; there is nothing to wait for.
    (void)c.send(MessageType::kGoodbye, packet.header.request, {});
    return Status(c.failure.code(), c.failure.what(), c.failure.where(), c.failure.fix());
  }
  c.phase = Phase::kLeaving;
  c.goodbye_request = packet.header.request;
  control_->leave(ports::SessionId(c.id), Status::ok_status());
  return {};
}

void SessionServer::end(Connection& c, const Status& why) {
  if (!why.ok() && c.phase != Phase::kFailed) (void)c.send_error(c.phase == Phase::kJoining ? c.hello_request : 0, why);
  if (c.phase != Phase::kNew && c.phase != Phase::kLeaving) {
    control_->leave(ports::SessionId(c.id), c.phase == Phase::kFailed ? Status::ok_status() : why);
  }
  if (c.session != nullptr) {
    if (!why.ok()) c.session->fail(why);
    c.session->mark_dead();
    delete_later(std::move(c.session));
  }
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, c.socket.get(), nullptr);
  closer_->close(std::move(c.socket));
  connections_.erase(c.id);
}

}  // namespace tensorlane::session
