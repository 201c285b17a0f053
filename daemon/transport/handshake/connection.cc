#include "daemon/transport/handshake/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tensorlane::handshake {
namespace {

const char* waiting_for(Connection::State state) {
  switch (state) {
    case Connection::State::kConnecting:
      return "the connection";
    case Connection::State::kChallenge:
      return "the challenge";
    case Connection::State::kVerdict:
      return "the verdict";
    case Connection::State::kSettling:
      return "the transport's connection";
    case Connection::State::kHello:
      return "the hello";
    case Connection::State::kProof:
      return "the proof";
    case Connection::State::kReady:
      return "the peer's readiness";
    case Connection::State::kDone:
    case Connection::State::kFailed:
      break;
  }
  return "nothing";
}

}  // namespace

Connection::Connection(Fd socket, ClassId cls, Time deadline, const ExchangeFactory& exchanges)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(false),
      deadline_(deadline),
      remote_(peer_endpoint(socket_.get()).text()),
      cls_(cls),
      state_(State::kHello),
      exchanges_(exchanges) {}

Connection::Connection(Fd socket, const Endpoint& peer, ports::FlowKey key, JobPtr job, Time deadline,
                       const ExchangeFactory& exchanges)
    : Watched(Kind::kConnection),
      socket_(std::move(socket)),
      connecting_end_(true),
      deadline_(deadline),
      remote_(peer.text()),
      cls_(key.cls),
      state_(State::kConnecting),
      peer_known_(true),
      key_(key),
      job_(std::move(job)),
      exchanges_(exchanges) {}

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
    case State::kSettling:
      return on_settling();
    case State::kHello:
      return on_hello(jobs);
    case State::kProof:
      return on_proof(jobs);
    case State::kReady:
      return on_ready();
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
  parameter_bytes_ = exchanges_.bytes_for(*job_);
  hello_ = make_hello(*job_, key_.peer, key_.cls, parameter_bytes_);
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
  server_nonce_ = challenge.nonce;
  if (!make_offer({})) return state_;
  proof.mac = client_mac(*job_, hello_, challenge.nonce, mine_);
  return send(proof, mine_, exchange_ ? exchange_->descriptor() : -1) ? State::kVerdict : state_;
}

Connection::State Connection::on_verdict() {
  Verdict verdict;
  if (!receive(verdict, mine_.empty() ? 0 : mine_.size() + kMacBytes)) return state_;
  if (const Verdicted head = check_head(verdict.head); !head.ok()) return refuse(head);
  if (verdict.head.refusal != Refusal::kNone) return refused(verdict.head, unpack_text(verdict.text));
  if (!exchange_) return State::kDone;
  const Parameters theirs = received_behind<Verdict>(mine_.size() + kMacBytes).first(mine_.size());
  Mac mac;
  std::memcpy(mac.data(), theirs.data() + theirs.size(), mac.size());
  if (!same_mac(mac, parameter_mac(*job_, hello_, server_nonce_, mine_, theirs))) {
    return refuse({Refusal::kSecret, "its parameters were changed on the way"});
  }
  exchange_->bind(exchange_secret(*job_, hello_, server_nonce_, mine_, theirs));
  if (const Status accepted = exchange_->accept(theirs); !accepted.ok())
    return refuse({Refusal::kParameters, accepted.to_string()});
  return State::kSettling;
}

Connection::State Connection::on_settling() {
  const Result<bool> settled = exchange_->settled();
  if (settled.ok() && *settled) return send(Ready{}) ? State::kDone : state_;
  if (settled.ok()) return peer_waits() ? state_ : lost(0);
  const Status& cause = settled.status();
  if (cause.code() != Code::kUnavailable) return refuse({Refusal::kParameters, cause.to_string()});
  return fail(cause.code(), "failed: " + cause.what(), cause.fix());
}

// ---- the accepting end ----

Connection::State Connection::on_hello(const JobTable& jobs) {
  if (!receive(hello_)) return state_;
  // A job that is not here is refused for that.
  const auto asked = jobs.find(JobId(hello_.job));
  parameter_bytes_ = asked == jobs.end() ? hello_.parameter_bytes : exchanges_.bytes_for(*asked->second);
  const Verdicted verdict = check_hello(hello_, cls_, parameter_bytes_, jobs);
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
  if (!receive(proof, parameter_bytes_)) return state_;
  if (const Verdicted head = check_head(proof.head); !head.ok()) return refuse(head);
  if (proof.head.refusal != Refusal::kNone)
    return refused(proof.head, proof.head.refusal == Refusal::kParameters
                                   ? "it could not make its end of the flow"
                                   : "it could not verify this host's secret for the job");
  // The job may have gone, or come back with another epoch, since the hello.
  const auto found = jobs.find(key_.job);
  if (found == jobs.end() || found->second != job_) return refuse({Refusal::kJob, "the job has ended on this host"});
  const Parameters theirs = received_behind<Proof>(parameter_bytes_);
  if (!same_mac(proof.mac, client_mac(*job_, hello_, server_nonce_, theirs))) {
    return refuse({Refusal::kSecret, "the connecting host does not hold the secret that this host has for the job"});
  }
  if (parameter_bytes_ == 0) return send(Verdict{}) ? State::kDone : state_;
  if (!make_offer(theirs)) return state_;
  exchange_->bind(exchange_secret(*job_, hello_, server_nonce_, theirs, mine_));
  if (const Status accepted = exchange_->accept(theirs); !accepted.ok())
    return refuse({Refusal::kParameters, accepted.to_string()});
  const Mac mac = parameter_mac(*job_, hello_, server_nonce_, theirs, mine_);
  std::vector<std::byte> answer = mine_;
  const auto mac_bytes = std::as_bytes(std::span(mac));
  answer.insert(answer.end(), mac_bytes.begin(), mac_bytes.end());
  return send(Verdict{}, answer) ? State::kReady : state_;
}

Connection::State Connection::on_ready() {
  Ready ready;
  if (!receive(ready)) return state_;
  if (const Verdicted head = check_head(ready.head); !head.ok()) return refuse(head);
  if (ready.head.refusal != Refusal::kNone) return refused(ready.head, "it could not use this host's parameters");
  const Result<bool> settled = exchange_->settled();
  if (!settled.ok()) return refuse({Refusal::kParameters, settled.status().to_string()});
  if (!*settled) return refuse({Refusal::kParameters, "the peer is ready and has connected nothing"});
  return State::kDone;
}

bool Connection::make_offer(Parameters theirs) {
  if (parameter_bytes_ == 0) return true;
  exchange_ = exchanges_.make(key_, job_);
  if (!connecting_end_) exchange_->take_descriptor(std::move(descriptor_));
  Result<std::vector<std::byte>> offer = exchange_->offer(theirs);
  if (!offer.ok()) {
    const bool later = offer.status().code() == Code::kInProgress;
    state_ = refuse({later ? Refusal::kNotYet : Refusal::kParameters, offer.status().to_string()});
    return false;
  }
  mine_ = std::move(offer).value();
  TL_ASSERT(mine_.size() == parameter_bytes_);
  return true;
}

// ---- both ----

template <typename Message>
bool Connection::receive(Message& message, std::size_t more) {
  static_assert(sizeof message + kMaxParameterBytes + kMacBytes <= sizeof inbox_);
  // The head alone tells an end of another version, or of no version; nothing is expected to follow it.
  if (inbox_bytes_ < sizeof(Head) && !receive_bytes(sizeof(Head))) return false;
  std::memcpy(&message.head, inbox_.data(), sizeof(Head));
  if (check_head(message.head).ok()) {
    if (!receive_bytes(sizeof message + (message.head.refusal == Refusal::kNone ? more : 0))) return false;
    std::memcpy(&message, inbox_.data(), sizeof message);
  }
  inbox_bytes_ = 0;
  return true;
}

bool Connection::receive_bytes(std::size_t bytes) {
  while (inbox_bytes_ < bytes) {
    // Not a byte more than this message: what follows the handshake belongs to the flow.
    const ssize_t received = receive_some(std::span(inbox_).subspan(inbox_bytes_, bytes - inbox_bytes_));
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

ssize_t Connection::receive_some(std::span<std::byte> into) {
  // Without room for descriptors the kernel closes what comes.
  if (state_ != State::kProof) return ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
  iovec piece{into.data(), into.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // of one: the kernel closes what is more
  const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* came = received > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (came != nullptr && came->cmsg_level == SOL_SOCKET && came->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(came), sizeof descriptor);
    descriptor_.reset(descriptor);
  }
  return received;
}

template <typename Message>
bool Connection::send(const Message& message, Parameters more, int descriptor) {
  std::array<std::byte, sizeof inbox_> bytes;
  const std::size_t size = sizeof message + more.size();
  std::memcpy(bytes.data(), bytes_of(message).data(), sizeof message);
  if (!more.empty()) std::memcpy(bytes.data() + sizeof message, more.data(), more.size());
  iovec piece{bytes.data(), size};
  msghdr whole{};
  whole.msg_iov = &piece;
  whole.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    whole.msg_control = control.data();
    whole.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&whole);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  const ssize_t sent = ::sendmsg(socket_.get(), &whole, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(size)) return true;
  // The first few hundred bytes of a connection always fit into its send buffer.
  state_ = lost(sent < 0 ? errno : ENOBUFS);
  return false;
}

// Has neither closed its end nor spoken out of turn.
bool Connection::peer_waits() const {
  std::byte byte;
  return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

void Connection::tell(const Verdicted& verdict) {
  Head head;
  head.refusal = verdict.refusal;
  const State at = state_;
  if (at == State::kHello) send(Challenge{.head = head, .text = pack_text(verdict.text)});
  if (at == State::kProof) send(Verdict{.head = head, .text = pack_text(verdict.text)});
  if (at == State::kChallenge) send(Proof{.head = head});
  if ((at == State::kVerdict || at == State::kSettling) && exchange_) send(Ready{head});
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

}  // namespace tensorlane::handshake
