// The Go client on a lead: one JSON command per line on stdin, one JSON event per line on stdout.
// The commands are listed in interop/README.md; what they should bring is decided by the caller.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const bodyShownBytes = 1024

type object = map[string]any

type queue struct {
	Topic  string `json:"topic"`
	Broker string `json:"broker"`
	ID     int    `json:"id"`
}

type wanted struct {
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Tags       *string           `json:"tags"`
	Keys       *string           `json:"keys"`
	Flag       int32             `json:"flag"`
	Delay      int               `json:"delay"`
	DeliverAt  *int64            `json:"deliverAt"`
	DelaySec   *int64            `json:"delaySec"`
	DelayMs    *int64            `json:"delayMs"`
	Properties map[string]string `json:"properties"`
	Queue      *queue            `json:"queue"`
	Shard      string            `json:"shard"`
}

type command struct {
	ID            int               `json:"id"`
	Do            string            `json:"do"`
	Name          string            `json:"name"`
	Group         string            `json:"group"`
	NameServer    string            `json:"nameServer"`
	Instance      string            `json:"instance"`
	Namespace     string            `json:"namespace"`
	Vip           bool              `json:"vip"`
	CompressAbove int               `json:"compressAbove"`
	Mode          string            `json:"mode"`
	UntilOk       bool              `json:"untilOk"`
	Progress      bool              `json:"progress"`
	Messages      []wanted          `json:"messages"`
	Topics        map[string]string `json:"topics"`
	FromLast      bool              `json:"fromLast"`
	Broadcasting  bool              `json:"broadcasting"`
	FailTimes     int32             `json:"failTimes"`
	FailLevel     int               `json:"failLevel"`
	MaxReconsume  *int32            `json:"maxReconsume"`
	Queue         *queue            `json:"queue"`
	QueueOffset   int64             `json:"queueOffset"`
	Max           int               `json:"max"`
	Timeout       int               `json:"timeout"`
	Message       *wanted           `json:"message"`
	ReplyBy       string            `json:"replyBy"`
	Sql           bool              `json:"sql"`
}

var (
	outLock   sync.Mutex
	tableLock sync.Mutex
	producers = map[string]rocketmq.Producer{}
	pushers   = map[string]rocketmq.PushConsumer{}
	pullers   = map[string]rocketmq.PullConsumer{}
)

func emit(event object) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	outLock.Lock()
	defer outLock.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func describe(err error) object {
	return object{"type": fmt.Sprintf("%T", err), "text": err.Error()}
}

// selector takes the queue a message names, else the one its sharding key chooses, else the next.
type selector struct{ turn, hash producer.QueueSelector }

func (s selector) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, lastBroker string,
) *primitive.MessageQueue {
	if message.Queue != nil {
		for _, candidate := range queues {
			if candidate.BrokerName == message.Queue.BrokerName &&
				candidate.QueueId == message.Queue.QueueId {
				return candidate
			}
		}
		return nil
	}
	if message.GetShardingKey() != "" {
		return s.hash.Select(message, queues, lastBroker)
	}
	return s.turn.Select(message, queues, lastBroker)
}

// The keys of all clients, from the variables that CometMQ's own clients read.
func credentials() (primitive.Credentials, bool) {
	key := os.Getenv("COMETMQ_ACCESS_KEY")
	return primitive.Credentials{AccessKey: key, SecretKey: os.Getenv("COMETMQ_SECRET_KEY")}, key != ""
}

func startProducer(given command) (any, error) {
	options := []producer.Option{
		producer.WithGroupName(given.Group),
		producer.WithNameServer(strings.Split(given.NameServer, ";")),
		producer.WithInstanceName(given.Instance),
		producer.WithVIPChannel(given.Vip),
		producer.WithSendMsgTimeout(10 * time.Second),
		producer.WithQueueSelector(
			selector{producer.NewRoundRobinQueueSelector(), producer.NewHashQueueSelector()}),
	}
	if given.Namespace != "" {
		options = append(options, producer.WithNamespace(given.Namespace))
	}
	if given.CompressAbove > 0 {
		options = append(options, producer.WithCompressMsgBodyOverHowmuch(given.CompressAbove))
	}
	if keys, isGiven := credentials(); isGiven {
		options = append(options, producer.WithCredentials(keys))
	}
	made, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err = made.Start(); err != nil {
		return nil, err
	}
	tableLock.Lock()
	producers[given.Name] = made
	tableLock.Unlock()
	return given.Instance, nil
}

func message(from wanted) (*primitive.Message, error) {
	body, err := base64.StdEncoding.DecodeString(from.Body)
	if err != nil {
		return nil, err
	}
	made := primitive.NewMessage(from.Topic, body)
	made.Flag = from.Flag
	for name, value := range from.Properties {
		made.WithProperty(name, value)
	}
	if from.Tags != nil {
		made.WithTag(*from.Tags)
	}
	if from.Keys != nil {
		made.WithKeys(strings.Split(*from.Keys, " "))
	}
	if from.Delay > 0 {
		made.WithDelayTimeLevel(from.Delay)
	}
	// The client has no exact times of its own; it sends the properties a user writes.
	for property, value := range map[string]*int64{
		"TIMER_DELIVER_MS": from.DeliverAt,
		"TIMER_DELAY_SEC":  from.DelaySec,
		"TIMER_DELAY_MS":   from.DelayMs,
	} {
		if value != nil {
			made.WithProperty(property, strconv.FormatInt(*value, 10))
		}
	}
	if from.Shard != "" {
		made.WithShardingKey(from.Shard)
	}
	if from.Queue != nil {
		made.Queue = &primitive.MessageQueue{
			Topic: from.Queue.Topic, BrokerName: from.Queue.Broker, QueueId: from.Queue.ID}
	}
	return made, nil
}

func showResult(result *primitive.SendResult, err error) object {
	if err != nil {
		return object{"error": describe(err)}
	}
	status := "NOT_OK"
	if result.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return object{
		"status":      status,
		"msgId":       result.MsgID,
		"offsetMsgId": result.OffsetMsgID,
		"queueOffset": result.QueueOffset,
		"queue": queue{
			result.MessageQueue.Topic, result.MessageQueue.BrokerName, result.MessageQueue.QueueId},
	}
}

func sendOne(from rocketmq.Producer, mode string, what wanted) object {
	made, err := message(what)
	if err != nil {
		return object{"error": describe(err)}
	}
	if mode == "oneway" {
		if err = from.SendOneWay(context.Background(), made); err != nil {
			return object{"error": describe(err)}
		}
		return object{"status": "ONEWAY"}
	}
	return showResult(from.SendSync(context.Background(), made))
}

func send(given command) (any, error) {
	from := producers[given.Name]
	if given.Mode == "batch" {
		batch := make([]*primitive.Message, 0, len(given.Messages))
		for _, what := range given.Messages {
			made, err := message(what)
			if err != nil {
				return nil, err
			}
			batch = append(batch, made)
		}
		return []object{showResult(from.SendSync(context.Background(), batch...))}, nil
	}
	results := make([]object, len(given.Messages))
	if given.Mode == "async" {
		var open sync.WaitGroup
		for i, what := range given.Messages {
			made, err := message(what)
			if err != nil {
				return nil, err
			}
			open.Add(1)
			err = from.SendAsync(
				context.Background(),
				func(_ context.Context, result *primitive.SendResult, err error) {
					results[i] = showResult(result, err)
					open.Done()
				}, made)
			if err != nil {
				results[i] = object{"error": describe(err)}
				open.Done()
			}
		}
		open.Wait()
		return results, nil
	}
	for i, what := range given.Messages {
		results[i] = sendOne(from, given.Mode, what)
		for given.UntilOk && results[i]["status"] != "SEND_OK" {
			results[i] = sendOne(from, given.Mode, what)
		}
		if given.Progress {
			emit(object{"event": "sent", "name": given.Name, "result": results[i]})
		}
	}
	return results, nil
}

func request(given command) (any, error) {
	made, err := message(*given.Message)
	if err != nil {
		return nil, err
	}
	reply, err := producers[given.Name].Request(
		context.Background(), time.Duration(given.Timeout)*time.Millisecond, made)
	if err != nil {
		return nil, err
	}
	return object{"body": mark(reply.Body), "tags": optional(reply.GetTags())}, nil
}

// reply answers a request with its own body behind "re: ".
func reply(from rocketmq.Producer, received *primitive.MessageExt) error {
	// The client takes the body it is given here for properties, so it gets none.
	made, err := consumer.CreateReplyMessage(received, nil)
	if err != nil {
		return err
	}
	made.Body = append([]byte("re: "), received.Body...)
	made.WithTag("reply")
	_, err = from.SendSync(context.Background(), made)
	return err
}

func mark(body []byte) string {
	if len(body) <= bodyShownBytes {
		return base64.StdEncoding.EncodeToString(body)
	}
	return fmt.Sprintf("sha256:%d:%x", len(body), sha256.Sum256(body))
}

func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func show(message *primitive.MessageExt) object {
	return object{
		"topic":          message.Topic,
		"broker":         message.Queue.BrokerName,
		"queueId":        message.Queue.QueueId,
		"queueOffset":    message.QueueOffset,
		"body":           mark(message.Body),
		"tags":           optional(message.GetTags()),
		"keys":           optional(message.GetKeys()),
		"properties":     message.GetProperties(),
		"flag":           message.Flag,
		"reconsumeTimes": message.ReconsumeTimes,
		"msgId":          message.MsgId,
		"offsetMsgId":    message.OffsetMsgId,
		"bornTime":       message.BornTimestamp,
		"storeTime":      message.StoreTimestamp,
		"bornHost":       strings.Split(message.BornHost, ":")[0],
	}
}

func options(given command) []consumer.Option {
	model := consumer.Clustering
	if given.Broadcasting {
		model = consumer.BroadCasting
	}
	where := consumer.ConsumeFromFirstOffset
	if given.FromLast {
		where = consumer.ConsumeFromLastOffset
	}
	made := []consumer.Option{
		consumer.WithGroupName(given.Group),
		consumer.WithNameServer(strings.Split(given.NameServer, ";")),
		consumer.WithInstance(given.Instance),
		consumer.WithVIPChannel(given.Vip),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(where),
		consumer.WithConsumeMessageBatchMaxSize(1),
		consumer.WithConsumeGoroutineNums(1),
	}
	if given.Namespace != "" {
		made = append(made, consumer.WithNamespace(given.Namespace))
	}
	if given.MaxReconsume != nil {
		made = append(made, consumer.WithMaxReconsumeTimes(*given.MaxReconsume))
	}
	if keys, isGiven := credentials(); isGiven {
		made = append(made, consumer.WithCredentials(keys))
	}
	return made
}

func startPush(given command) (any, error) {
	made, err := rocketmq.NewPushConsumer(options(given)...)
	if err != nil {
		return nil, err
	}
	handle := func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, received := range messages {
			time.Sleep(time.Duration(number(received, "slow")) * time.Millisecond)
			emit(object{"event": "message", "name": given.Name, "message": show(received)})
			if given.ReplyBy != "" {
				if err := reply(producers[given.ReplyBy], received); err != nil {
					return consumer.ConsumeRetryLater, err
				}
			}
			if received.ReconsumeTimes < given.FailTimes {
				if settings, has := primitive.GetConcurrentlyCtx(ctx); has {
					settings.DelayLevelWhenNextConsume = given.FailLevel
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	for topic, expression := range given.Topics {
		filter := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		if given.Sql {
			filter.Type = consumer.SQL92
		}
		if err = made.Subscribe(topic, filter, handle); err != nil {
			return nil, err
		}
	}
	tableLock.Lock()
	pushers[given.Name] = made
	tableLock.Unlock()
	return given.Instance, made.Start()
}

// A started pull consumer polls by itself and lets one pull from an offset.
func startOld(given command) (any, error) {
	made, err := rocketmq.NewPullConsumer(options(given)...)
	if err != nil {
		return nil, err
	}
	for topic, expression := range given.Topics {
		filter := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
		if given.Sql {
			filter.Type = consumer.SQL92
		}
		if err = made.Subscribe(topic, filter); err != nil {
			return nil, err
		}
	}
	tableLock.Lock()
	pullers[given.Name] = made
	tableLock.Unlock()
	return given.Instance, made.Start()
}

func pull(given command) (any, error) {
	from := &primitive.MessageQueue{
		Topic: given.Queue.Topic, BrokerName: given.Queue.Broker, QueueId: given.Queue.ID}
	result, err := pullers[given.Name].PullFrom(
		context.Background(), from, given.QueueOffset, given.Max)
	if err != nil {
		return nil, err
	}
	shown := []object{}
	for _, received := range result.GetMessageExts() {
		shown = append(shown, show(received))
	}
	names := map[primitive.PullStatus]string{
		primitive.PullFound: "FOUND", primitive.PullNoNewMsg: "NO_NEW_MSG",
		primitive.PullNoMsgMatched:  "NO_MATCHED_MSG",
		primitive.PullOffsetIllegal: "OFFSET_ILLEGAL"}
	return object{"status": names[result.Status], "next": result.NextBeginOffset,
		"min": result.MinOffset, "max": result.MaxOffset, "messages": shown}, nil
}

func shutdown[T interface{ Shutdown() error }](table map[string]T, name string) (any, error) {
	tableLock.Lock()
	client := table[name]
	delete(table, name)
	tableLock.Unlock()
	return nil, client.Shutdown()
}

func run(given command) (any, error) {
	switch given.Do {
	case "producer":
		return startProducer(given)
	case "closeProducer":
		return shutdown(producers, given.Name)
	case "send":
		return send(given)
	case "request":
		return request(given)
	case "transactor":
		return startTransactor(given)
	case "closeTransactor":
		return shutdown(transactors, given.Name)
	case "transact":
		return transact(given)
	case "push":
		return startPush(given)
	case "ordered":
		return startOrdered(given)
	case "closePush", "closeOrdered":
		return shutdown(pushers, given.Name)
	case "old":
		return startOld(given)
	case "closeOld":
		return shutdown(pullers, given.Name)
	case "pull":
		return pull(given)
	}
	return nil, errors.New("no command is called " + strconv.Quote(given.Do))
}

func answer(given command) {
	made := object{"id": given.ID}
	defer func() {
		if fault := recover(); fault != nil {
			made["error"] = object{"type": "panic", "text": fmt.Sprint(fault)}
		}
		emit(made)
	}()
	result, err := run(given)
	if err != nil {
		made["error"] = describe(err)
		return
	}
	made["result"] = result
}

func main() {
	rlog.SetLogLevel("warn")
	emit(object{"event": "ready"})
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
		var given command
		if err = json.Unmarshal(line, &given); err != nil {
			panic(err)
		}
		go answer(given)
	}
}
