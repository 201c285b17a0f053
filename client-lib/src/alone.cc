#include "client-lib/src/alone.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/available_memory.h"

namespace tensorlane::client {
namespace {

using protocol::MessageType;
using protocol::RingPage;

constexpr std::uint32_t kRingEntries = 2 * protocol::kMaxOutstanding;
// Nobody watches for it; what has failed is over so soon.
constexpr double kDetectionSeconds = 1;
constexpr std::size_t kMostIds =
    (protocol::kMaxMessage - sizeof(protocol::MessageHeader) - sizeof(protocol::RegisteredBody)) /
    sizeof(std::uint32_t);

Status no_memory(const char* what, const char* call) {
  return Status(Code::kResourceExhausted, what, std::string(call) + ": " + std::strerror(errno),
                "free memory or descriptors on this host");
}

template <typename T>
T read(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// As JSON has it, of a text without control characters.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

void copy_text(std::span<char> to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), to.size() - 1));
}

}  // namespace

Result<std::unique_ptr<Alone>> Alone::begin(Channel& channel, std::string why) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return no_memory("cannot begin without a daemon", "socketpair");
  channel.adopt(UniqueFd(ends[0]));
  std::unique_ptr<Alone> alone(new Alone(UniqueFd(ends[1]), std::move(why)));
  TL_RETURN_IF_ERROR(alone->map_rings());
  alone->thread_ = std::thread([self = alone.get()] { self->run(); });
  pthread_setname_np(alone->thread_.native_handle(), "tl-alone");
  return alone;
}

Alone::~Alone() {
  (void)shutdown(socket_.get(), SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  for (const std::span<std::byte> arena : arenas_) munmap(arena.data(), arena.size());
  if (!rings_.empty()) munmap(rings_.data(), rings_.size());
}

Status Alone::map_rings() {
  const std::size_t bytes = protocol::ring_memory_bytes(kRingEntries);
  wake_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  rings_fd_ = UniqueFd(memfd_create("tensorlane-rings", MFD_CLOEXEC));
  if (wake_fd_.get() < 0 || rings_fd_.get() < 0 || ftruncate(rings_fd_.get(), static_cast<off_t>(bytes)) != 0)
    return no_memory("cannot make the rings", "memfd_create");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, rings_fd_.get(), 0);
  if (memory == MAP_FAILED) return no_memory("cannot map the rings", "mmap");
  rings_ = std::span(static_cast<std::byte*>(memory), bytes);
  new (memory) RingPage{};
  return {};
}

// The flag and the eventfd as session.h has them.
void Alone::run() {
  auto& page = *reinterpret_cast<RingPage*>(rings_.data());
  while (true) {
    complete_submissions();
    page.daemon_sleeping.store(1, std::memory_order_seq_cst);
    if (page.submitted.load(std::memory_order_seq_cst) != taken_) {
      page.daemon_sleeping.store(0, std::memory_order_relaxed);
      continue;
    }
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
    poll(fds, 2, -1);
    page.daemon_sleeping.store(0, std::memory_order_relaxed);
    if (fds[1].revents != 0) {
      eventfd_t count;
      (void)eventfd_read(wake_fd_.get(), &count);
    }
    if (fds[0].revents != 0 && !answer_next()) return;
  }
}

// What has begun in parts is done with its last entry.
void Alone::complete_submissions() {
  const auto& page = *reinterpret_cast<RingPage*>(rings_.data());
  const auto* submissions =
      reinterpret_cast<const protocol::SubmissionEntry*>(rings_.data() + protocol::kRingPageBytes);
  auto* completions = reinterpret_cast<protocol::CompletionEntry*>(rings_.data() + protocol::kRingPageBytes +
                                                                   kRingEntries * sizeof(protocol::SubmissionEntry));
  const std::uint32_t submitted = page.submitted.load(std::memory_order_acquire);
  if (submitted == taken_) return;
  for (; taken_ != submitted; ++taken_) {
    const protocol::SubmissionEntry entry = submissions[taken_ & (kRingEntries - 1)];
    if (entry.flags != 0) continue;
    if (const auto exchange = exchanges_.find(entry.tensor); exchange != exchanges_.end()) {
      publish(taken_);  // what came before does not wait for the copy
      const std::span<std::byte> buffer = exchange->second;
      std::memcpy(buffer.data() + buffer.size() / 2, buffer.data(), buffer.size() / 2);
    }
    completions[completed_++ & (kRingEntries - 1)] = {entry.tensor, Code::kOk, entry.sequence};
  }
  publish(taken_);
}

void Alone::publish(std::uint32_t taken) {
  auto& page = *reinterpret_cast<RingPage*>(rings_.data());
  page.taken.store(taken, std::memory_order_release);
  page.completed.store(completed_, std::memory_order_seq_cst);
  if (page.waiters.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, &page.completed, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// False once the client has hung up.
bool Alone::answer_next() {
  std::array<std::byte, protocol::kMaxMessage> packet;
  const ssize_t n = recv(socket_.get(), packet.data(), packet.size(), 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n < static_cast<ssize_t>(sizeof(protocol::MessageHeader))) return false;
  const auto header = read<protocol::MessageHeader>(packet);
  const auto body = std::span(packet).first(static_cast<std::size_t>(n)).subspan(sizeof header);
  switch (header.type) {
    case MessageType::kHello:
      welcome(header.request);
      break;
    case MessageType::kArena:
      give_arena(header.request, body);
      break;
    case MessageType::kRegister:
      register_group(header.request, body);
      break;
    case MessageType::kUnregister:
      unregister_group(header.request, body);
      break;
    case MessageType::kStatus:
      say_status(header.request);
      break;
    case MessageType::kGoodbye:
      complete_submissions();
      answer(MessageType::kGoodbye, header.request, {});
      break;
    default:
      break;
  }
  return true;
}

void Alone::answer(MessageType type, std::uint32_t request, std::span<const std::byte> body, int fd, int second_fd) {
  protocol::MessageHeader header;
  header.type = type;
  header.request = request;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
  const int fds[2] = {fd, second_fd};
  const std::size_t count = fd < 0 ? 0 : second_fd < 0 ? 1 : 2;
  if (count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(c), fds, sizeof(int) * count);
  }
  // The client's helper reads all the time.
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0 && (errno == EINTR || errno == EAGAIN)) {
    pollfd ready{socket_.get(), POLLOUT, 0};
    poll(&ready, 1, -1);
  }
}

void Alone::refuse(std::uint32_t request, const Status& why) {
  protocol::ErrorBody body;
  body.code = why.code();
  copy_text(body.what, why.what());
  copy_text(body.where, why.where());
  copy_text(body.fix, why.fix());
  answer(MessageType::kError, request, bytes_of(body));
}

void Alone::welcome(std::uint32_t request) {
  protocol::WelcomeBody body;
  body.ring_entries = kRingEntries;
  body.hosts = 1;
  body.detection_seconds = kDetectionSeconds;
  answer(MessageType::kWelcome, request, bytes_of(body), rings_fd_.get(), wake_fd_.get());
}

void Alone::give_arena(std::uint32_t request, std::span<const std::byte> packet) {
  auto body = read<protocol::ArenaBody>(packet);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  body.bytes = (body.bytes + page - 1) / page * page;
  // The kernel would grant it and then kill somebody for it.
  const std::uint64_t available = available_memory().value;
  if (available < body.bytes) {
    return refuse(request,
                  Status(Code::kResourceExhausted, "this host is short of memory",
                         std::to_string(body.bytes) + " bytes asked for, " + std::to_string(available) + " available",
                         "ask for less"));
  }
  const UniqueFd memory(memfd_create("tensorlane", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), static_cast<off_t>(body.bytes)) != 0)
    return refuse(request, no_memory("cannot make shared memory", "memfd_create"));
  void* mapped = mmap(nullptr, body.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) return refuse(request, no_memory("cannot map shared memory", "mmap"));
  body.segment = static_cast<std::uint32_t>(arenas_.size());
  arenas_.emplace_back(static_cast<std::byte*>(mapped), body.bytes);
  answer(MessageType::kArena, request, bytes_of(body), memory.get());
}

// The packets of a group follow one another.
void Alone::register_group(std::uint32_t request, std::span<const std::byte> packet) {
  const auto body = read<protocol::RegisterBody>(packet);
  for (std::uint32_t i = 0; i < body.count; ++i) {
    const std::size_t first = sizeof body + body.set_ranks * sizeof(std::uint32_t);
    const auto tensor = read<protocol::TensorBody>(packet.subspan(first + i * sizeof(protocol::TensorBody)));
    coming_.push_back({tensor.name, exchanged_by(tensor)});
  }
  if (body.more != 0) return;
  const std::string group = body.group;
  const std::vector<Tensor> tensors = std::exchange(coming_, {});
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors) names.push_back(tensor.name);
  const Status status = check(group, names);
  if (!status.ok()) return refuse(request, status);
  protocol::RegisteredBody head;
  head.count = static_cast<std::uint32_t>(names.size());
  std::vector<std::byte> text(sizeof head + names.size() * sizeof(std::uint32_t));
  std::memcpy(text.data(), &head, sizeof head);
  Group& made = groups_[group];
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (free_ids_.empty()) free_ids_.push_back(tensors_++);
    made.ids.push_back(free_ids_.back());
    free_ids_.pop_back();
    std::memcpy(text.data() + sizeof head + i * sizeof(std::uint32_t), &made.ids.back(), sizeof(std::uint32_t));
    names_.insert(names[i]);
    if (!tensors[i].exchanged.empty()) exchanges_[made.ids.back()] = tensors[i].exchanged;
  }
  made.names = names;
  answer(MessageType::kRegistered, request, text);
}

std::span<std::byte> Alone::exchanged_by(const protocol::TensorBody& body) const {
  if (body.operation != Operation::kAlltoall) return {};
  return arenas_[body.segment].subspan(body.offset, body.elements * dtype_size(body.dtype));
}

Status Alone::check(const std::string& group, const std::vector<std::string>& names) const {
  const std::string where = "group '" + group + "'";
  if (groups_.contains(group))
    return Status(Code::kAlreadyExists, "the group is registered already", where, "use another group name");
  if (names.size() > kMostIds) {
    return Status(Code::kResourceExhausted, std::to_string(names.size()) + " tensors in one group", where,
                  "the limit is " + std::to_string(kMostIds) + ": register in several groups");
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (names_.contains(name) || !seen.insert(name).second) {
      return Status(Code::kAlreadyExists, "tensor '" + name + "' is registered already", where,
                    "give every tensor of a job a name of its own");
    }
  }
  return {};
}

void Alone::unregister_group(std::uint32_t request, std::span<const std::byte> packet) {
  const auto group = groups_.find(read<protocol::UnregisterBody>(packet).group);
  if (group == groups_.end()) return refuse(request, Status(Code::kNotFound, "no such group", "", "register it first"));
  for (const std::string& name : group->second.names) names_.erase(name);
  for (const std::uint32_t id : group->second.ids) exchanges_.erase(id);
  free_ids_.insert(free_ids_.end(), group->second.ids.begin(), group->second.ids.end());
  groups_.erase(group);
  answer(MessageType::kUnregistered, request, {});
}

void Alone::say_status(std::uint32_t request) {
  const std::string json = "{\"alone\": " + quoted(why_) + ", \"jobs\": []}";
  protocol::StatusPage page;
  page.bytes = json.size();
  std::vector<std::byte> body(sizeof page + json.size());
  std::memcpy(body.data(), &page, sizeof page);
  std::memcpy(body.data() + sizeof page, json.data(), json.size());
  answer(MessageType::kStatus, request, body);
}

}  // namespace tensorlane::client
