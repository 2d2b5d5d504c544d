package main

// Transactional producers: a message's property `local` says how its local transaction ends
// (COMMIT, ROLLBACK, UNKNOW), its property `check` what a check-back is told. Each check-back is a
// message event under the producer's name.

import (
	"context"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var transactors = map[string]rocketmq.TransactionProducer{}

type listener struct{ name string }

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "COMMIT":
		return primitive.CommitMessageState
	case "ROLLBACK":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (l listener) ExecuteLocalTransaction(
	message *primitive.Message,
) primitive.LocalTransactionState {
	return state(message.GetProperty("local"))
}

func (l listener) CheckLocalTransaction(
	message *primitive.MessageExt,
) primitive.LocalTransactionState {
	if message.Queue == nil { // the client does not say where a half message is for
		message.Queue = &primitive.MessageQueue{Topic: message.Topic}
	}
	emit(object{"event": "message", "name": l.name, "message": show(message)})
	return state(message.GetProperty("check"))
}

func startTransactor(given command) (any, error) {
	made, err := rocketmq.NewTransactionProducer(
		listener{given.Name},
		producer.WithGroupName(given.Group),
		producer.WithNameServer(strings.Split(given.NameServer, ";")),
		producer.WithInstanceName(given.Instance),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	if err != nil {
		return nil, err
	}
	if err = made.Start(); err != nil {
		return nil, err
	}
	tableLock.Lock()
	transactors[given.Name] = made
	tableLock.Unlock()
	return given.Instance, nil
}

func transact(given command) (any, error) {
	tableLock.Lock()
	from := transactors[given.Name]
	tableLock.Unlock()
	results := make([]object, len(given.Messages))
	for i, what := range given.Messages {
		made, err := message(what)
		if err != nil {
			return nil, err
		}
		result, err := from.SendMessageInTransaction(context.Background(), made)
		if err != nil {
			results[i] = object{"error": describe(err)}
			continue
		}
		results[i] = showResult(result.SendResult, nil)
	}
	return results, nil
}
