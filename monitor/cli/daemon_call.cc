#include "monitor/cli/daemon_call.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>

#include "common/protocol/session.h"
#include "common/protocol/status_text.h"
#include "monitor/answers/parse.h"

namespace tensorlane::cli {

using nlohmann::json;

namespace {

// What a page may take beyond the time that the hosts have.
constexpr double kPageSeconds = 5;

// Sends a packet and reads the page of text that answers it.
Status read_page(int fd, const std::string& path, protocol::MessageType type, std::span<const std::byte> body,
                 protocol::StatusText& text) {
  protocol::MessageHeader header;
  header.type = type;
  header.request = 1;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  std::string packet(sizeof header + body.size(), '\0');
  std::memcpy(packet.data(), &header, sizeof header);
  std::memcpy(packet.data() + sizeof header, body.data(), body.size());
  std::string answer(protocol::kMaxMessage, '\0');
  const bool sent = send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
  // A daemon that refuses says why before it closes.
  const ssize_t got = sent || errno == EPIPE ? recv(fd, answer.data(), answer.size(), 0) : -1;
  if (got < static_cast<ssize_t>(sizeof header)) {
    const bool waited = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    return {Code::kTimedOut,
            fmt::format("the daemon did not answer{}: {}", waited ? " in time" : "",
                        got == 0 ? "it closed the connection"
                        : waited ? "it may be stopped, or short of CPU"
                                 : std::strerror(errno)),
            path, "look at the daemon's log"};
  }
  std::memcpy(&header, answer.data(), sizeof header);
  const auto page =
      std::as_bytes(std::span(answer)).subspan(sizeof header, static_cast<std::size_t>(got) - sizeof header);
  if (header.type != protocol::MessageType::kError) return text.add(page);
  protocol::ErrorBody error;
  std::memcpy(&error, page.data(), std::min(sizeof error, page.size()));
  return {error.code, error.what, error.where, error.fix};
}

Status read_status_page(int fd, const std::string& path, protocol::StatusText& text) {
  const protocol::StatusBody body{text.next()};
  return read_page(fd, path, protocol::MessageType::kStatus, std::as_bytes(std::span(&body, 1)), text);
}

// The whole text that the first page begins.
Result<std::string> read_text(const std::string& path, Duration patience,
                              const std::function<Status(int fd, protocol::StatusText& text)>& first_page) {
  const int fd = connect_session(path);
  if (fd < 0 && errno == EACCES)
    return Status(Code::kUnavailable, fmt::format("the daemon's socket cannot be opened: {}", std::strerror(errno)),
                  path, "ask as root, or as a user whom the socket and its folder let in (`users` of daemon.yaml)");
  if (fd < 0)
    return Status(Code::kUnavailable, fmt::format("no daemon answers: {}", std::strerror(errno)), path,
                  "start it with: tensorlaned --config daemon.yaml");
  const timeval timeout{static_cast<time_t>(std::ceil(to_seconds(patience) + kPageSeconds)), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  protocol::StatusText text;
  Status page = first_page(fd, text);
  while (page.ok() && !text.complete()) page = read_status_page(fd, path, text);
  close(fd);
  if (!page.ok()) return page;
  return text.take();
}

Status error_of(const json& error) {
  const auto text = [&error](const char* key) {
    const auto found = error.find(key);
    return found != error.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Code code = Code::kUnavailable;
  for (int c = 1; c <= static_cast<int>(Code::kInternal); ++c) {
    if (text("code") == code_name(static_cast<Code>(c))) code = static_cast<Code>(c);
  }
  return {code, text("what"), text("where"), text("fix")};
}

}  // namespace

std::string daemon_socket() {
  const char* variable = std::getenv("TENSORLANE_SOCKET");
  return variable != nullptr ? variable : "/run/tensorlane/tensorlaned.sock";
}

int connect_session(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

Result<std::string> daemon_status(const std::string& socket_path) {
  return read_text(socket_path, Duration(0), [&socket_path](int fd, protocol::StatusText& text) {
    return read_status_page(fd, socket_path, text);
  });
}

Result<DaemonAnswers> ask_daemons(const std::string& socket_path, const DaemonQuestion& question) {
  json asked{{"kind", question.kind}, {"args", question.args}, {"timeout_s", to_seconds(question.patience)}};
  if (!question.job.empty())
    asked["job"] = question.job;
  else if (question.all_hosts)
    asked["hosts"] = "all";
  else if (!question.hosts.empty())
    asked["hosts"] = question.hosts;
  const std::string packet = asked.dump(-1, ' ', false, json::error_handler_t::replace);
  if (packet.size() > protocol::kMaxQuestion) {
    return Status(Code::kInvalidArgument, fmt::format("a question of {} bytes", packet.size()), question.kind,
                  fmt::format("ask with at most {}, e.g. name fewer hosts", protocol::kMaxQuestion));
  }
  TL_ASSIGN_OR_RETURN(
      const std::string text, read_text(socket_path, question.patience, [&](int fd, protocol::StatusText& page) {
        return read_page(fd, socket_path, protocol::MessageType::kAsk, std::as_bytes(std::span(packet)), page);
      }));
  json answer = answers::parse(text);
  if (answer.is_object() && answer.contains("error") && answer["error"].is_object()) return error_of(answer["error"]);
  // A daemon of another release, or one that lies, may have put anything anywhere.
  const auto is_text = [](const json& object, const char* key) {
    return object.is_object() && object.contains(key) && object[key].is_string();
  };
  DaemonAnswers all;
  bool whole = is_text(answer, "host") && answer.contains("answers") && answer["answers"].is_array();
  for (json& one : whole ? answer["answers"] : json::array()) {
    const bool has_text = is_text(one, "text");
    whole = whole && is_text(one, "host") && (has_text || (one.contains("error") && one["error"].is_object()));
    if (!whole) break;
    Result<std::string> said = has_text ? Result<std::string>(std::move(one["text"].get_ref<std::string&>()))
                                        : Result<std::string>(error_of(one["error"]));
    all.answers.push_back({one["host"], std::move(said)});
  }
  if (!whole) {
    return Status(Code::kCorrupt, "the daemon's answer cannot be read", socket_path,
                  "install the same release of the command and the daemon");
  }
  all.host = answer["host"];
  return all;
}

HostReports sort_out(const DaemonAnswers& all) {
  HostReports sorted;
  for (const DaemonAnswer& answer : all.answers) {
    json said = answer.text.ok() ? answers::parse(*answer.text) : json();
    if (said.is_object())
      sorted.reports[answer.host] = std::move(said);
    else
      sorted.silent[answer.host] = !answer.text.ok() ? answer.text.status()
                                                     : Status(Code::kCorrupt, "its answer is no JSON object",
                                                              answer.host, "install the same release on all hosts");
  }
  return sorted;
}

}  // namespace tensorlane::cli
