#include "daemon/transport/tcp/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tensorlane::tcp {
namespace {

const char* waiting_for(Connection::State state) {
  switch (state) {
    case Connection::State::kConnecting:
      return "the connection";
    case Connection::State::kChallenge:
      return "the challenge";
    case Connection::State::kVerdict:
      return "the verdict";
    case Connection::State::kHello:
      return "the hello";
    case Connection::State::kProof:
      return "the proof";
    case Connection::State::kDone:
    case Connection::State::kFailed:
      break;
  }
  return "nothing";
}

}  // namespace

Connection::Connection(Fd socket, ClassId cls, Time deadline)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(false),
      deadline_(deadline),
      remote_(peer_endpoint(socket_.get()).text()),
      cls_(cls),
      state_(State::kHello) {}

Connection::Connection(Fd socket, const Endpoint& peer, ports::FlowKey key, JobPtr job, Time deadline)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(true),
      deadline_(deadline),
      remote_(peer.text()),
      cls_(key.cls),
      state_(State::kConnecting),
      peer_known_(true),
      key_(key),
      job_(std::move(job)) {}

Connection::State Connection::advance(const JobTable& jobs) {
  for (;;) {
    const State before = state_;
    state_ = step(jobs);
    if (state_ == before || state_ == State::kDone || state_ == State::kFailed) return state_;
  }
}

Connection::State Connection::step(const JobTable& jobs) {
  switch (state_) {
    case State::kConnecting:
      return on_connected();
    case State::kChallenge:
      return on_challenge();
    case State::kVerdict:
      return on_verdict();
    case State::kHello:
      return on_hello(jobs);
    case State::kProof:
      return on_proof(jobs);
    case State::kDone:
    case State::kFailed:
      break;
  }
  return state_;
}

// ---- the connecting end ----

Connection::State Connection::on_connected() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return lost(error);
  if (peer_endpoint(socket_.get()).length == 0) return state_;  // still on its way
  hello_ = make_hello(*job_, key_.peer, key_.cls);
  return send(hello_) ? State::kChallenge : state_;
}

Connection::State Connection::on_challenge() {
  Challenge challenge;
  if (!receive(challenge)) return state_;
  if (const Verdicted head = check_head(challenge.head); !head.ok()) return refuse(head);
  if (challenge.head.refusal != Refusal::kNone) return refused(challenge.head, unpack_text(challenge.text));
  Proof proof;
  if (!same_mac(challenge.mac, server_mac(*job_, hello_, challenge.nonce))) {
    return refuse({Refusal::kSecret, "it does not hold the secret that this host has for the job"});
  }
  proof.mac = client_mac(*job_, hello_, challenge.nonce);
  return send(proof) ? State::kVerdict : state_;
}

Connection::State Connection::on_verdict() {
  Verdict verdict;
  if (!receive(verdict)) return state_;
  if (const Verdicted head = check_head(verdict.head); !head.ok()) return refuse(head);
  if (verdict.head.refusal != Refusal::kNone) return refused(verdict.head, unpack_text(verdict.text));
  return State::kDone;
}

// ---- the accepting end ----

Connection::State Connection::on_hello(const JobTable& jobs) {
  if (!receive(hello_)) return state_;
  const Verdicted verdict = check_hello(hello_, cls_, jobs);
  if (verdict.refusal != Refusal::kNotTensorlane && verdict.refusal != Refusal::kVersion) {
    key_ = {JobId(hello_.job), HostIndex(hello_.from), cls_};
    peer_known_ = true;
  }
  if (!verdict.ok()) return refuse(verdict);
  job_ = jobs.at(key_.job);
  server_nonce_ = random_nonce();
  Challenge challenge;
  challenge.nonce = server_nonce_;
  challenge.mac = server_mac(*job_, hello_, server_nonce_);
  return send(challenge) ? State::kProof : state_;
}

Connection::State Connection::on_proof(const JobTable& jobs) {
  Proof proof;
  if (!receive(proof)) return state_;
  if (const Verdicted head = check_head(proof.head); !head.ok()) return refuse(head);
  if (proof.head.refusal != Refusal::kNone)
    return refused(proof.head, "it could not verify this host's secret for the job");
  // The job may have gone, or come back with another epoch, since the hello.
  const auto found = jobs.find(key_.job);
  if (found == jobs.end() || found->second != job_) return refuse({Refusal::kJob, "the job has ended on this host"});
  if (!same_mac(proof.mac, client_mac(*job_, hello_, server_nonce_))) {
    return refuse({Refusal::kSecret, "the connecting host does not hold the secret that this host has for the job"});
  }
  return send(Verdict{}) ? State::kDone : state_;
}

// ---- both ----

template <typename Message>
bool Connection::receive(Message& message) {
  static_assert(sizeof message <= sizeof inbox_);
  // The head alone tells an end of another version, or of no version; nothing is expected to follow it.
  if (inbox_bytes_ < sizeof(Head) && !receive_bytes(sizeof(Head))) return false;
  std::memcpy(&message.head, inbox_.data(), sizeof(Head));
  if (check_head(message.head).ok()) {
    if (!receive_bytes(sizeof message)) return false;
    std::memcpy(&message, inbox_.data(), sizeof message);
  }
  inbox_bytes_ = 0;
  return true;
}

bool Connection::receive_bytes(std::size_t bytes) {
  while (inbox_bytes_ < bytes) {
    // Not a byte more than this message: what follows the handshake belongs to the flow.
    const ssize_t received = ::recv(socket_.get(), inbox_.data() + inbox_bytes_, bytes - inbox_bytes_, MSG_DONTWAIT);
    if (received < 0 && errno == EINTR) continue;
    if (received < 0 && errno == EAGAIN) return false;
    if (received <= 0) {
      state_ = lost(received == 0 ? 0 : errno);
      return false;
    }
    silent_ = false;
    inbox_bytes_ += static_cast<std::size_t>(received);
  }
  return true;
}

template <typename Message>
bool Connection::send(const Message& message) {
  const auto bytes = bytes_of(message);
  const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return true;
  // The first few hundred bytes of a connection always fit into its send buffer.
  state_ = lost(sent < 0 ? errno : ENOBUFS);
  return false;
}

void Connection::tell(const Verdicted& verdict) {
  Head head;
  head.refusal = verdict.refusal;
  const State at = state_;
  if (at == State::kHello) send(Challenge{.head = head, .text = pack_text(verdict.text)});
  if (at == State::kProof) send(Verdict{.head = head, .text = pack_text(verdict.text)});
  if (at == State::kChallenge) send(Proof{.head = head});
  refusal_ = verdict.refusal;
}

Connection::State Connection::refuse(const Verdicted& verdict) {
  tell(verdict);
  return fail(refusal_code(refusal_), "was refused by this host: " + verdict.text, refusal_fix(refusal_));
}

Connection::State Connection::refused(const Head& head, const std::string& text) {
  refusal_ = head.refusal;
  return fail(refusal_code(refusal_), "was refused by the peer: " + text, refusal_fix(refusal_));
}

void Connection::time_out() {
  const Verdicted late{Refusal::kNotAnswered, fmt::format("{} did not come in time", waiting_for(state_))};
  tell(late);
  state_ = fail(Code::kTimedOut, "failed: " + late.text, refusal_fix(late.refusal));
}

Connection::State Connection::lost(int error) {
  const std::string reason = error == 0 ? "closed by the peer" : errno_text(error);
  return fail(Code::kUnavailable, fmt::format("failed while waiting for {}: {}", waiting_for(state_), reason),
              "check that tensorlaned runs on that host and that its data ports can be reached");
}

Connection::State Connection::fail(Code code, const std::string& how, const std::string& fix) {
  if (state_ == State::kFailed) return state_;  // the first cause counts
  const std::string name = peer_known_ ? connection_name(key_.peer, remote_, cls_)
                                       : fmt::format("connection from {} (class {})", remote_, class_name(cls_));
  failure_ = {code, fmt::format("{} {}", name, how), {}, fix};
  state_ = State::kFailed;
  return state_;
}

}  // namespace tensorlane::tcp
